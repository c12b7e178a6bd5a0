"""Rules for the whole suite: one thread, a private home, and no skip that is not on the allow-list."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings
from skips import ALLOWED_SKIPS

torch.set_num_threads(1)
# Shared machines stall; a deadline would turn that into failures that say nothing about the code.
settings.register_profile("moegen", deadline=None, derandomize=True)
settings.load_profile("moegen")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels", help="folder of compiled sm_90a test kernels; hopper/prebuild.py fills it")


def pytest_configure(config: pytest.Config) -> None:
    if kept := config.getoption("--kernels"):
        from runtime import packages

        packages.KEPT = (Path(kept) / packages.STORE,)


def is_h200_present() -> bool:
    """True when a GPU of compute capability 9.0 can be used."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = set() if is_h200_present() else {"gpu", "two_gpus"}
    if not missing and torch.cuda.device_count() < 2:
        missing = {"two_gpus"}
    for item in items:
        for name in missing:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=ALLOWED_SKIPS[name]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.skipped and not any(item.get_closest_marker(name) for name in ALLOWED_SKIPS):
        report.outcome = "failed"
        # pytest does not count a failure that still says it was expected.
        vars(report).pop("wasxfail", None)
        report.longrepr = f"{item.nodeid} skipped or xfailed, and tests/skips.py does not allow it: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skipped at import: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the user's own store."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MOEGEN_HOME", str(home))
    monkeypatch.delenv("MOEGEN_PACKS", raising=False)
    return home
