"""One set of compiled kernels for all tests of this folder."""

import pytest
from kernels.harness import Workshop


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("kernels"))
