"""Speed of the interpreter on one core: ``python -m benchmarks.ptx.speed``; prints the table of RESULTS.md.

Times are CPU seconds of this process (other work on the machine does not count), the median of several runs with their
spread; loading and compiling are not included.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.ptx.sm100a import published
from moegen.ptx import Check, Module, Options, Severity, capture, load

RUNS = 7
SCALAR = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry mix(.param .u64 a, .param .u64 b, .param .u32 rounds)
{
    .reg .pred %p<3>; .reg .b32 %r<30>; .reg .f32 %f<10>; .reg .b64 %rd<10>;
    .shared .align 4 .b8 s[1024];
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u32 %r20, [rounds];
    mov.u32 %r1, %tid.x;
    mov.u32 %r14, %ctaid.x;
    mad.lo.u32 %r15, %r14, 128, %r1;
    mov.u32 %r2, s;
    mul.wide.u32 %rd3, %r15, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    shl.b32 %r3, %r1, 2;
    add.u32 %r3, %r3, %r2;
    ld.global.u32 %r4, [%rd4];
    mov.u32 %r10, 0;
LOOP:
    add.u32 %r5, %r4, %r10;
    mul.lo.u32 %r6, %r5, 2654435761;
    shr.u32 %r7, %r6, 15;
    xor.b32 %r5, %r6, %r7;
    and.b32 %r8, %r5, 1023;
    cvt.rn.f32.u32 %f1, %r8;
    mul.f32 %f2, %f1, 0f3F000000;
    add.f32 %f3, %f2, %f1;
    cvt.rzi.u32.f32 %r9, %f3;
    setp.gt.u32 %p1, %r9, 700;
    selp.u32 %r11, %r9, %r5, %p1;
    st.shared.u32 [%r3], %r11;
    ld.shared.u32 %r12, [%r3];
    add.u32 %r4, %r4, %r12;
    shfl.sync.bfly.b32 %r13, %r4, 3, 31, -1;
    add.u32 %r4, %r4, %r13;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, %r20;
    @%p2 bra LOOP;
    st.global.u32 [%rd5], %r4;
    ret;
}
"""


def timed(work: Callable[[], Any], runs: int = RUNS) -> tuple[float, float, float, Any]:
    """Median, least and largest CPU seconds, and the last result."""
    samples, result = [], work()
    for _ in range(runs):
        start = time.process_time()
        result = work()
        samples.append(time.process_time() - start)
    return statistics.median(samples), min(samples), max(samples), result


def row(name: str, median: float, low: float, high: float, note: str) -> None:
    print(f"| {name} | {median * 1e3:.1f} ms | {low * 1e3:.1f}-{high * 1e3:.1f} ms | {note} |", flush=True)


def scalar(module: Module, races: bool) -> Callable[[], Any]:
    x, y = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    options = Options(races=races)
    return lambda: module.launch("mix", grid=2, block=128, args=[x, y, 200], options=options)


def prepared(case: Any, options: Options) -> Callable[[], Any]:
    """The launch of a case without compiling or parsing again."""
    session = capture.Session(options)
    session.add_ptx(case.ptx)
    for buffer in case.buffers:
        session.register(buffer)
    capture.one_device(case.call)

    def work() -> Any:
        with session.active():
            case.call(*case.arguments)
        return session.results[-1]

    return work


def main() -> None:
    print("| what | CPU time | spread | note |\n|---|---|---|---|")
    module = load(SCALAR)
    for races in (False, True):
        median, low, high, result = timed(scalar(module, races))
        rate = result.stats.instructions / median
        row(
            f"scalar, shared memory, shuffles{', race detector' if races else ''}",
            median,
            low,
            high,
            f"{rate:,.0f} warp-instructions/s",
        )
    lenient = {Check.TMEM_LOAD_WAIT: Severity.OFF}
    shapes = {
        "NVFP4 GEMM 512x256x1536, 128x128 tiles": ((512, 256, 1536, 1), (128, 128), (1, 1)),
        "the same, CTA pairs": ((512, 256, 1536, 1), (256, 128), (2, 1)),
    }
    for name, (mnkl, tile, cluster) in shapes.items():
        case = published.gemm(mnkl, tile, cluster)
        for races in (False, True):
            median, low, high, result = timed(prepared(case, Options(races=races, severity=lenient)))
            rate = result.stats.instructions / median
            row(f"{name}{', race detector' if races else ''}", median, low, high, f"{rate:,.0f} warp-instructions/s")
    # Scale factors over many powers of two: products are summed in f64, not in f32.
    case = published.gemm((512, 256, 1536, 1), (128, 128), (1, 1), wide=True)
    for races in (False, True):
        median, low, high, result = timed(prepared(case, Options(races=races, severity=lenient)))
        rate = result.stats.instructions / median
        name = f"the first, scales over a wide range{', race detector' if races else ''}"
        row(name, median, low, high, f"{rate:,.0f} warp-instructions/s")
    # The widest tile whose published kernel finishes: 128x192 twice is more work than one 128x256 tile.
    case = published.gemm((128, 192, 7168, 1), (128, 192), (1, 1))
    median, low, high, _ = timed(prepared(case, Options(severity=lenient)))
    row("one NVFP4 tile 128x192x7168", median, low, high, f"scaled to 128x256: {median * 256 / 192:.3f} s")
    case = published.gemm((256, 256, 7168, 1), (256, 128), (2, 1))
    median, low, high, _ = timed(prepared(case, Options(severity=lenient)))
    row("NVFP4 256x256x7168 by CTA pairs", median, low, high, "two tiles 256x128")


if __name__ == "__main__":
    main()
