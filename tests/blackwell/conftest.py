"""Kernels are compiled once a session."""

import pytest
from blackwell.workshop import Workshop


@pytest.fixture(scope="session")
def blackwell_workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Compiled sm_100a variants, shared by all tests of the session."""
    return Workshop(tmp_path_factory.mktemp("blackwell"))
