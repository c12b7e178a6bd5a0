"""Recordings of launches that were made without host code."""

from pathlib import Path

import numpy as np
import pytest
from ptx.snippets import aligned, ptx
from typer.testing import CliRunner

from moegen.ptx import Launch, Options, RecordError, load, record
from moegen.ptx.cli import app

DOUBLE = "    ld.global.u32 %r5, [%rd4];\n    add.u32 %r5, %r5, %r5;\n    st.global.u32 [%rd5], %r5;"


def test_a_direct_launch_is_recorded_and_replays(tmp_path: Path) -> None:
    text, x, y = ptx(DOUBLE), aligned(256).view(np.uint32), aligned(256).view(np.uint32)
    x[:] = np.arange(64)
    module = load(text, "double")
    launch = Launch(entry="k", grid=(2, 1, 1), block=(32, 1, 1), params=module.pack("k", [x, y]))
    recording, result = record.record(text, module, [launch], Options(races=True))
    assert result.reports == []
    assert np.array_equal(y, 2 * x)
    path = tmp_path / "double.npz"
    recording.save(path)
    y[:] = 0
    replayed = record.replay(path, Options(seed=3))
    assert replayed.equal
    assert replayed.results[0].stats.instructions == result.stats.instructions
    assert CliRunner().invoke(app, ["run", str(path)]).output.endswith("0 errors, memory equal\n")


def test_a_file_of_another_kind_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(ptx(DOUBLE))
    with pytest.raises(RecordError, match="no NumPy archive"):
        record.replay(path)
