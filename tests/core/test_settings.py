"""What the environment says, and what it may not say."""

import pytest

from moegen.core.errors import MoegenError
from moegen.core.settings import cpu_threads, read_settings


@pytest.mark.parametrize(("text", "threads"), [("", 0), ("0", 0), (" 3 ", 3)])
def test_threads(monkeypatch: pytest.MonkeyPatch, text: str, threads: int) -> None:
    monkeypatch.setenv("MOEGEN_THREADS", text)
    assert read_settings().threads == threads
    assert cpu_threads(read_settings()) == threads or (threads == 0 and cpu_threads(read_settings()) >= 1)


@pytest.mark.parametrize("text", ["abc", "-1", "1.5", "²"])
def test_threads_that_are_no_count_are_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MOEGEN_THREADS", text)
    with pytest.raises(MoegenError, match="MOEGEN_THREADS"):
        read_settings()
