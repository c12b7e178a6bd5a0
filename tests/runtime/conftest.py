"""Packages that many tests share, made once."""

import pytest
from runtime.packages import SPEC, TestPackage, reference_package
from runtime.writers import random_weights

from moegen.runtime import ExpertWeights, MoELayer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    """All three epilogues of a small W4A4 layer on the torch reference."""
    return reference_package(SPEC, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def weights() -> ExpertWeights:
    return random_weights(experts=7)


@pytest.fixture
def layer(tiny: TestPackage, weights: ExpertWeights) -> MoELayer:
    return tiny.load().from_tensors(weights)
