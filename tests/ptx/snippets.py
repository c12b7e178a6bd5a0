"""Small PTX kernels for tests: a body between a fixed head and tail."""

from typing import Any

import numpy as np
import pytest

from moegen.ptx import Check, ExecutionError, Module, Options, Policy, Result, load

WORDS = np.random.default_rng(3).integers(0, 1 << 32, 256).astype(np.uint32)
SCHEDULES = [
    Options(seed=1, races=True),
    Options(seed=2, policy=Policy.LAZY, slice_steps=3),
    Options(seed=3, policy=Policy.EAGER, slice_steps=500, timeout_probability=0.5),
]

HEAD = """.version 8.8
.target {target}
.address_size 64
{extra}
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{directives}
{{
    .reg .pred %p<20>;
    .reg .b16 %h<20>;
    .reg .b32 %r<200>;
    .reg .b64 %rd<60>;
    .reg .f32 %f<40>;
    ld.param.u64 %rd1, [p_in];
    ld.param.u64 %rd2, [p_out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
"""


def ptx(body: str, *, target: str = "sm_100a", extra: str = "", directives: str = "") -> str:
    """Module text: in the body, r1 is tid, r2 ctaid, r4 the thread's index, rd4 and rd5 its input and output word."""
    return HEAD.format(target=target, extra=extra, directives=directives) + body + "\n    ret;\n}\n"


def module(body: str, **more: Any) -> Module:
    """Loaded snippet."""
    return load(ptx(body, **more), "snippet")


def run(
    body: str,
    source: Any,
    *,
    out: int | None = None,
    block: int = 32,
    grid: int | tuple[int, int, int] = 1,
    cluster: int = 1,
    smem: int = 0,
    options: Options | None = None,
    **more: Any,
) -> tuple[Any, Result]:
    """Output words (u32) and result of a snippet."""
    source = np.ascontiguousarray(source, np.uint32)
    target = np.zeros(source.size if out is None else out, np.uint32)
    result = module(body, **more).launch(
        "k", grid=grid, block=block, cluster=cluster, args=[source, target], dynamic_smem=smem, options=options
    )
    return target, result


def aligned(size: int, align: int = 512) -> Any:
    """Zeroed bytes at an aligned address."""
    room = np.zeros(size + align, np.uint8)
    start = -room.ctypes.data % align
    return room[start : start + size]


def failing(body: str, check: Check, **more: Any) -> str:
    """Runs a kernel that must be refused with a finding; its text."""
    with pytest.raises(ExecutionError) as caught:
        run(body, WORDS, **more)
    report = caught.value.report
    assert report is not None
    assert report.check is check, str(report)
    assert report.kernel == "k"
    assert report.line > 0 or check is Check.DEADLOCK or report.cta >= 0
    return str(report)
