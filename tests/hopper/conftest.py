"""Kernels are compiled once a session, or once and for all: ``--kernels=FOLDER``, which prebuild.py can fill."""

import os
from pathlib import Path

import pytest
from hopper.workshop import Workshop


@pytest.fixture(scope="session")
def hopper_workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Compiled sm_90a variants, shared by all tests of the session, in whichever process of it they run."""
    kept = request.config.getoption("--kernels")
    base = Path(tmp_path_factory.getbasetemp())
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Workshop(Path(kept) if kept else shared / "hopper_kernels")
