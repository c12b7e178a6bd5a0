"""The fault registry keeps its promise: a guard that would not notice its fault fails, and no fault goes unguarded."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import faults
from tests.faults import guards

TESTS = Path(__file__).parent
broken = False


@contextmanager
def breaks_it() -> Iterator[None]:
    """The thing under test is broken."""
    global broken
    broken = True
    try:
        yield
    finally:
        broken = False


def test_guard_that_notices_passes(tmp_path: Path) -> None:
    folders = []

    @guards(breaks_it)
    def guard(*, tmp_path: Path) -> None:
        folders.append(tmp_path.name)
        assert not broken

    guard(tmp_path=tmp_path)
    assert folders == ["sound", "breaks_it"]


def test_guard_that_notices_by_pytest_raises_passes(tmp_path: Path) -> None:
    def refuse() -> None:
        if not broken:
            raise ValueError("refused")

    @guards(breaks_it)
    def guard(*, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="refused"):
            refuse()

    guard(tmp_path=tmp_path)


def test_guard_that_sleeps_fails(tmp_path: Path) -> None:
    @guards(breaks_it)
    def guard(*, tmp_path: Path) -> None:
        assert tmp_path.is_dir()

    with pytest.raises(AssertionError, match="guard passes under breaks_it: The thing under test is broken"):
        guard(tmp_path=tmp_path)


def test_guard_must_pass_without_the_fault(tmp_path: Path) -> None:
    @guards(breaks_it)
    def guard(*, tmp_path: Path) -> None:
        raise ValueError("always")

    with pytest.raises(ValueError, match="always"):
        guard(tmp_path=tmp_path)


def injected() -> list[str]:
    """Names of all faults of the registry."""
    return [
        name
        for name, value in vars(faults).items()
        if inspect.isfunction(value) and value.__module__ == faults.__name__ and not name.startswith("_")
        if name not in ("guards", "forgotten")
    ]


@pytest.mark.parametrize("name", injected())
def test_every_fault_is_described_and_guarded(name: str) -> None:
    assert inspect.getdoc(getattr(faults, name)), "a fault says what it breaks"
    users = [path for path in TESTS.rglob("test_*.py") if f"faults.{name}" in path.read_text()]
    assert users, f"no test is under @guards(faults.{name})"
