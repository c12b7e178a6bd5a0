"""Asynchronous copies and tensor cores on sm_90a kernels, against element-by-element definitions."""

import re
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ptx.snippets import aligned, module, run

from benchmarks.ptx.h200_proof import interpreter, shapes
from moegen.ptx import ADVERSARIES, Check, ExecutionError, Options, Policy, tensormap
from moegen.ptx.swizzle import swizzle

CASES = {case.name: case for case in shapes.cases()}
SCHEDULES = [
    Options(seed=s, policy=p, races=r)
    for s, (p, r) in enumerate([(Policy.RANDOM, True), (Policy.LAZY, False), (Policy.EAGER, False)])
]


def bf16(words: Any) -> Any:
    return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


# -- swizzle and tensor maps -------------------------------------------------------------------------------------


def test_swizzle_literals() -> None:
    assert [swizzle(a, 128) for a in (0, 0x80, 0x100, 0x390, 0x410)] == [0, 0x90, 0x120, 0x3E0, 0x410]
    assert [swizzle(a, 64) for a in (0x80, 0x100, 0x180, 0x200)] == [0x90, 0x120, 0x1B0, 0x200]
    assert [swizzle(a, 32) for a in (0x80, 0x90, 0x100)] == [0x90, 0x80, 0x100]
    assert swizzle(0x123, 0) == 0x123


def make(**changes: Any) -> tensormap.TensorMap:
    base = {
        "address": 0x7F0012345600,
        "format": 11,
        "dims": (768, 256, 1),
        "strides": (384, 98304),
        "box": (256, 128, 1),
        "element_strides": (1, 1, 1),
        "swizzle": 128,
    }
    return tensormap.TensorMap(**{**base, **changes})


def test_tensor_map_words() -> None:
    words = struct.unpack("<32I", tensormap.encode(make()))
    assert words[0] == 0x12345600
    assert words[1] == 0x7F00
    assert words[2] & 0xFFFF == 2 | 2 << 4 | 11 << 7 | 3 << 13
    assert words[3:5] == (384 >> 4, 98304 >> 4)
    assert words[8:11] == (767, 255, 0)
    assert words[13] >> 24 == 255
    assert words[14] & 0xFFFF == 127
    assert set(words[15:]) == {0}
    far = tensormap.encode(make(strides=(384, 1 << 37)))
    assert struct.unpack("<32I", far)[7] == 2 << 4
    assert tensormap.decode(far) == make(strides=(384, 1 << 37))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strides": (392, 98304)}, "multiples of 16"),
        ({"box": (16, 8, 1), "format": 11}, "16 bytes"),
        ({"box": (512, 8, 1), "format": 0}, "above 256"),
        ({"format": 7, "box": (64, 8, 1)}, "exceeds"),
        ({"interleave": 1}, "interleave"),
        ({"element_strides": (2, 1, 1)}, "element strides"),
        ({"format": 13}, "6-bit"),
        ({"strides": (384, 1 << 41)}, "2\\^40"),
    ],
)
def test_invalid_tensor_maps(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(tensormap.TensorMapError, match=text):
        tensormap.validate(make(**changes))


def naive_box(source: Any, fields: dict[str, Any], at: tuple[int, ...], size: int) -> Any:
    """Shared-memory image of a box (row-major, unswizzled): element by element."""
    box, dims = fields["box"], fields["dims"]
    strides = (size, *fields["strides"])
    image = np.zeros(int(np.prod(box)) * size, np.uint8)
    for number, index in enumerate(np.ndindex(*reversed(box))):
        where = [a + i for a, i in zip(at, reversed(index), strict=True)]
        if all(0 <= w < d for w, d in zip(where, dims, strict=True)):
            offset = sum(w * s for w, s in zip(where, strides, strict=True))
            image[number * size : number * size + size] = source[offset : offset + size]
    return image


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.entry.startswith(("tensor_1d", "tensor_2d", "tensor_3d"))]
)
@pytest.mark.parametrize("options", SCHEDULES)
def test_tensor_copies(name: str, options: Options) -> None:
    case = CASES[name]
    fields = case.maps[0][1]
    size = tensormap.FORMAT_BITS[fields["format"]] // 8
    at = tuple(case.args[4 : 4 + len(fields["dims"])])
    source, target = case.args[7], case.args[8]
    image = naive_box(source, fields, at, size)
    results = interpreter.run(case, options)
    # The kernel copies shared memory out as it lies there: swizzled, from a 1024-byte boundary.
    unswizzled = results[2][swizzle(np.arange(image.size), fields["swizzle"])]
    assert np.array_equal(unswizzled, image)
    want = target.copy()
    box, dims = fields["box"], fields["dims"]
    strides = (size, *fields["strides"])
    if len(dims) == 1:
        # The last 16 bytes of a 1d tensor are stored whole: an H200 does so.
        dims = ((dims[0] * size + 15) // 16 * 16 // size,)
    for number, index in enumerate(np.ndindex(*reversed(box))):
        where = [max(a, 0) + i for a, i in zip(at, reversed(index), strict=True)]
        if all(w < d for w, d in zip(where, dims, strict=True)):
            offset = sum(w * s for w, s in zip(where, strides, strict=True))
            want[offset : offset + size] = image[number * size : number * size + size]
    assert np.array_equal(results[8], want)


@pytest.mark.parametrize("entry", ["tensor_1d format 7 swizzle 0", "tensor_3d format 0 swizzle 0"])
def test_a_store_to_negative_coordinates_is_refused(entry: str) -> None:
    case = CASES[entry]
    assert min(case.args[4:7]) < 0
    text = re.sub(r"max\.s32 (\s*%r\d+, %r\d+), 0;", r"max.s32 \1, -100;", case.text)
    assert text != case.text
    with pytest.raises(ExecutionError, match="negative coordinates") as error:
        interpreter.run(replace(case, text=text))
    assert error.value.report is not None
    assert error.value.report.check is Check.OUT_OF_BOUNDS


def test_tensor_reductions_add() -> None:
    case = CASES["tensor_reduce format 7"]
    assert np.array_equal(interpreter.run(case)[4], case.args[3] + case.args[4])
    case = CASES["tensor_reduce format 2"]
    assert np.array_equal(interpreter.run(case)[4], case.args[3] + case.args[4])


def test_a_map_changed_on_the_device() -> None:
    case = CASES["tensor_replace"]
    fields = {"box": (32, 8), "dims": (40, 9), "strides": (192,)}
    image = naive_box(case.args[1], fields, (16, 5), 1)
    got = interpreter.run(case)[3]
    assert np.array_equal(got[swizzle(np.arange(256), 32)], image)


def test_multicast_reaches_every_cta_of_the_mask() -> None:
    case = CASES["multicast"]
    source = case.args[3][:1024].reshape(16, 64)
    for options in SCHEDULES:
        got = interpreter.run(case, options)[1].reshape(2, 1024)
        for rank in range(2):
            for half in range(2):
                image = got[rank, 512 * half : 512 * half + 512]
                assert np.array_equal(
                    image[swizzle(np.arange(512), 64)].reshape(8, 64), source[8 * half : 8 * half + 8]
                )


def test_bulk_copies_and_reductions() -> None:
    case = CASES["bulk"]
    changed = case.args[0][:4096].view(np.uint32) * np.uint32(3) + np.uint32(1)
    sums = case.args[2]
    for options in SCHEDULES:
        results = interpreter.run(case, options)
        assert np.array_equal(results[1].view(np.uint32), changed)
        head = changed[:256]
        want = [
            sums[:256] + head,
            np.maximum(sums[256:512].view(np.int32), head.view(np.int32)).view(np.uint32),
            sums[512:] ^ head,
        ]
        assert np.array_equal(results[2], np.concatenate(want))


def test_cp_async_groups_and_zero_fill() -> None:
    case = CASES["cp_async"]
    data = case.args[0]
    for options in SCHEDULES:
        out = interpreter.run(case, options)[1]
        first = data[:1024].reshape(64, 16)[::-1].reshape(-1)
        assert np.array_equal(out[:1024], first)
        second = data[1024:2048].reshape(64, 16).copy()
        second[[k for k in range(64) if not k & 16]] = 0
        assert np.array_equal(out[1024:2048], second[::-1].reshape(-1))
        assert np.array_equal(out[2048:3072], data[2048:3072].reshape(64, 16)[::-1].reshape(-1))
        words = data[100 : 100 + 256].reshape(64, 4)
        assert np.array_equal(out[3072:3328].reshape(64, 4), np.roll(words, -9, axis=0))


def test_clusters_exchange_through_distributed_memory() -> None:
    case = CASES["cluster"]
    x = case.args[0].astype(np.uint64).reshape(2, 4, 64)
    for options in ADVERSARIES:
        out = interpreter.run(case, options)[1].astype(np.uint64).reshape(3, 2, 4, 64)
        for c in range(2):
            for rank in range(4):
                right = x[c, (rank + 1) % 4][::-1]
                assert np.array_equal(out[0, c, rank], (right + np.uint64(rank)) & np.uint64(0xFFFFFFFF))
                # The left neighbour wrote five times what it had read here, plus its thread, mirrored.
                written = (x[c, rank][::-1] * np.uint64(5) + np.arange(64, dtype=np.uint64)) & np.uint64(0xFFFFFFFF)
                assert np.array_equal(out[1, c, rank], written[::-1])
                assert (out[2, c, rank] == (rank + 1) % 4).all()


# -- warp and warpgroup matrices ---------------------------------------------------------------------------------


def fragments(words: Any, count: int, kind: str) -> Any:
    """A or B fragment (count registers of 32 lanes) by the documented element positions."""
    per = {"f16": 2, "bf16": 2, "tf32": 1, "e4m3": 4}[kind]
    return words.reshape(count, 32, 1).view({2: np.uint16, 1: np.uint32, 4: np.uint8}[per]).reshape(count, 32, per)


def value(codes: Any, kind: str) -> Any:
    import ml_dtypes

    types = {
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "tf32": np.float32,
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
    }
    return codes.view(types[kind]).astype(np.float64)


@pytest.mark.parametrize(
    ("name", "kind", "depth"),
    [
        ("mma_f16", "f16", 16),
        ("mma_bf16", "bf16", 16),
        ("mma_tf32", "tf32", 8),
        ("mma_f16_k8", "f16", 8),
        ("mma_tf32_k4", "tf32", 4),
        ("mma_e4m3", "e4m3", 32),
    ],
)
def test_mma(name: str, kind: str, depth: int) -> None:
    case = CASES[name]
    per = {"f16": 2, "bf16": 2, "tf32": 1, "e4m3": 4}[kind]
    halves = 2 if depth == 8 * per else 1
    left = value(fragments(case.args[0], 2 * halves, kind), kind)
    right = value(fragments(case.args[1], halves, kind), "e5m2" if kind == "e4m3" else kind)
    a, b, c = np.zeros((16, depth)), np.zeros((depth, 8)), np.zeros((16, 8))
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        for j in range(per):
            for h in range(halves):
                k = thread * per + j + h * 4 * per
                a[group, k], a[group + 8, k] = left[2 * h, lane, j], left[2 * h + 1, lane, j]
                b[k, group] = right[h, lane, j]
        for e in range(4):
            c[group + 8 * (e // 2), 2 * thread + e % 2] = case.args[2].view(np.float32).reshape(4, 32)[e, lane]
    want = (a @ b + c).astype(np.float32)
    got = interpreter.run(case)[3].view(np.float32).reshape(4, 32)
    for lane in range(32):
        for e in range(4):
            assert got[e, lane] == want[lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2]


def test_ldmatrix_and_stmatrix() -> None:
    case = CASES["matrices"]
    words = case.args[0]
    out = interpreter.run(case)[1]
    halves = words.view(np.uint16)
    for register in range(4):
        for lane in range(32):
            row = (register * 8 + lane // 4) * 5 & 31
            pair = halves[row * 8 + (lane % 4) * 2 : row * 8 + (lane % 4) * 2 + 2]
            assert out[register * 32 + lane] == int(pair[0]) | int(pair[1]) << 16
    for register in range(2):
        for lane in range(32):
            rows = [(register * 8 + (lane % 4) * 2 + h) * 5 & 31 for h in range(2)]
            pair = [int(halves[row * 8 + lane // 4]) for row in rows]
            assert out[128 + register * 32 + lane] == pair[0] | pair[1] << 16
    stored = out[224:352]
    for register in range(4):
        for lane in range(32):
            assert stored[register * 32 + (lane // 4) * 4 + lane % 4] == words[register * 32 + lane]
    moved = out[416:448].view(np.uint16).reshape(32, 2)
    source = words[:32].view(np.uint16).reshape(8, 8)
    assert np.array_equal(moved.reshape(8, 8), source.T)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith("wgmma") and "random" not in name and name != "wgmma_rs"]
)
@pytest.mark.parametrize("options", SCHEDULES)
def test_wgmma(name: str, options: Options) -> None:
    case = CASES[name]
    kind = name.split("_")[1].split(" ")[0]
    forms = [part for part in name.split(" ") if part[:1] in "km" and part[-1].isdigit()]
    size = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1}[kind]
    spans = [int(form.strip("kmn")) for form in forms if form.startswith("k") and form != "k0"]
    k = min(spans, default=64) // size
    operands = []
    for image, rows, form in ((case.args[0], 64, forms[0]), (case.args[1], 32, forms[1])):
        raw, span = image.view(np.uint8), int(form.strip("kmn"))
        codes = np.zeros((rows, k, size), np.uint8)
        for r in range(rows):
            for c in range(k):
                if form.startswith("mn"):
                    address = c // 8 * 8 * span + c % 8 * span + r * size
                elif span:
                    address = r // 8 * 8 * span + r % 8 * span + c * size
                else:
                    address = r // 8 * 128 + r % 8 * 16 + c * size // 16 * rows * 16 + c * size % 16
                address = swizzle(address, span)
                codes[r, c] = raw[address : address + size]
        flat = codes.reshape(rows, k * size).view({1: np.uint8, 2: np.uint16, 4: np.uint32}[size])
        operands.append(value(flat, kind))
    sign = -1 if "neg" in name else 1
    product = sign * operands[0] @ operands[1].T
    got = interpreter.run(case, options)[2].view(np.float32).reshape(16, 128)
    for register in range(16):
        for thread in range(128):
            warp, lane = thread // 32, thread % 32
            row = 16 * warp + lane // 4 + 8 * (register % 4 // 2)
            column = 8 * (register // 4) + 2 * (lane % 4) + register % 2
            assert got[register, thread] == np.float32(product[row, column] + register)


def test_wgmma_with_a_in_registers() -> None:
    case = CASES["wgmma_rs"]
    a = np.zeros((64, 32))
    fragment = value(case.args[0].reshape(8, 128, 1).view(np.uint16).reshape(8, 128, 2), "bf16")
    for step in range(2):
        for register in range(4):
            for thread in range(128):
                lane = thread % 32
                row = 16 * (thread // 32) + lane // 4 + 8 * (register % 2)
                column = 16 * step + 8 * (register // 2) + 2 * (lane % 4)
                a[row, column : column + 2] = fragment[step * 4 + register, thread]
    raw = case.args[1].view(np.uint8)
    b = np.zeros((32, 32))
    for r in range(32):
        for c in range(32):
            address = swizzle(r // 8 * 1024 + r % 8 * 128 + 2 * c, 128)
            b[r, c] = value(raw[address : address + 2].view(np.uint16), "bf16")[0]
    # Scale-D is false in the first step only.
    want = a @ b.T
    for options in SCHEDULES:
        got = interpreter.run(case, options)[2].view(np.float32).reshape(16, 128)
        for register in range(16):
            for thread in range(0, 128, 7):
                row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 4 // 2)
                assert got[register, thread] == want[row, 8 * (register // 4) + 2 * (thread % 4) + register % 2]


def test_reading_an_accumulator_too_early_shows() -> None:
    case = CASES["wgmma_rs"]
    text = case.text.replace("wgmma.wait_group.sync.aligned 0", "wgmma.wait_group.sync.aligned 1")
    early = interpreter.run(shapes.Case(**{**case.__dict__, "text": text}), Options(policy=Policy.LAZY))[2]
    assert not np.array_equal(early, interpreter.run(case)[2])


# -- misuse ------------------------------------------------------------------------------------------------------

LOAD = """
    .shared .align 1024 .b8 tile[2048];
    .shared .align 8 .b64 bar;
    mov.u32 %r6, tile;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra SKIP;
    mbarrier.init.shared.b64 [bar], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 %rd6, [bar], 512;
    {copy}
    SKIP:
    bar.sync 0;
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
    @!%p2 bra WAIT;
    add.u32 %r7, %r6, 0;
    shl.b32 %r8, %r1, 2;
    add.u32 %r7, %r7, %r8;
    ld.shared.u32 %r9, [%r7];
    st.global.u32 [%rd5], %r9;"""


@pytest.mark.parametrize(
    ("copy", "check"),
    [
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 500, [bar];",
            Check.MISALIGNED,
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1+4], 512, [bar];",
            Check.MISALIGNED,
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 256, [bar];",
            Check.DEADLOCK,
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1+768], 512, [bar];",
            Check.OUT_OF_BOUNDS,
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6+3072], [%rd1], 512, [bar];",
            Check.OUT_OF_BOUNDS,
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 512, [bar+8];",
            Check.MBARRIER,
        ),
        (
            "cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r6], [%rd1, {%r1}], [bar];",
            Check.TENSORMAP,
        ),
    ],
)
def test_misuse_of_copies(copy: str, check: Check) -> None:
    source = aligned(1024)
    source[:] = 255
    words = source.view(np.uint32)
    target = np.zeros(64, np.uint32)
    loaded = module(LOAD.replace("{copy}", copy))
    with pytest.raises(ExecutionError) as caught:
        loaded.launch("k", grid=1, block=64, args=[words, target], options=Options(seed=1))
    assert caught.value.report is not None
    assert caught.value.report.check is check


def test_the_copy_arrives_and_its_destination_is_poisoned_until_then() -> None:
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 512, [bar];"
    source = aligned(1024).view(np.uint32)
    source[:] = np.arange(256)
    target = np.zeros(64, np.uint32)
    module(LOAD.replace("{copy}", copy)).launch(
        "k", grid=1, block=64, args=[source, target], options=Options(races=True)
    )
    assert target.tolist() == list(range(64))
    start, end = LOAD.index("    WAIT:"), LOAD.index("    add.u32 %r7, %r6, 0;")
    unwaited = (LOAD[:start] + LOAD[end:]).replace("{copy}", copy)
    late = Options(policy=Policy.LAZY, stop_at_error=False)
    result = module(unwaited).launch("k", grid=1, block=64, args=[source, target], options=late)
    assert {report.check for report in result.reports} == {Check.ASYNC_EXIT}, "the copy outlives its CTA"
    assert (target == 0xFFFFFFFF).all()


def test_exit_with_unread_sources() -> None:
    body = """
    .shared .align 128 .b8 tile[512];
    mov.u32 %r6, tile;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 ret;
    st.shared.u32 [%r6], 5;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r6], 16;
    cp.async.bulk.commit_group;"""
    with pytest.raises(ExecutionError, match="exits while bulk copies"):
        run(body, np.zeros(64), options=Options(policy=Policy.LAZY))
    run(body + "\n    cp.async.bulk.wait_group.read 0;", np.zeros(64), options=Options(policy=Policy.LAZY))
