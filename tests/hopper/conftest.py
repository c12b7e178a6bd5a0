"""Kernels are compiled once a session."""

from pathlib import Path

import pytest
from hopper.workshop import Workshop


@pytest.fixture(scope="session")
def hopper_workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Compiled sm_90a variants, shared by all tests of the session."""
    return Workshop(Path(tmp_path_factory.mktemp("hopper")))
