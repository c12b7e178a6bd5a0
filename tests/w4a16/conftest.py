"""Kernels are compiled once a session."""

from pathlib import Path

import pytest
from blackwell.workshop import Workshop


@pytest.fixture(scope="session")
def w4a16_workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Compiled sm_100a variants, shared by all tests of the session."""
    return Workshop(Path(tmp_path_factory.mktemp("w4a16")))
