"""Kernels are compiled once a session."""

import os
from pathlib import Path

import pytest
from hopper.workshop import Workshop


@pytest.fixture(scope="session")
def hopper_workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Compiled sm_90a variants, shared by all tests of the session, in whichever process of it they run."""
    base = Path(tmp_path_factory.getbasetemp())
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "hopper_kernels"
    folder.mkdir(exist_ok=True)
    return Workshop(folder)
