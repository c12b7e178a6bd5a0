"""Launches of the kernels in ``kernels.cu``: inputs, geometry, and how results are judged."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ptx.h200_proof.scalar import Case

TEXT = Path(__file__).with_name("kernels.ptx").read_text()


def words(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint64).astype(np.uint32)


def _case(
    entry: str, args: list[Any], outputs: list[int], threads: int, *, name: str = "", blocks: int = 1, **more: Any
) -> Case:
    return Case(name or entry, TEXT, entry, args, outputs, (blocks, 1, 1), (threads, 1, 1), **more)


def swizzled(address: Any, span: int) -> Any:
    """Shared-memory swizzle of byte addresses, written out again on purpose: it is part of what is proven."""
    if span == 0:
        return address
    keep = {32: 1, 64: 3, 128: 7}[span]
    return address ^ (((address >> 7) & keep) << 4)


def bf16(values: Any) -> Any:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def half(values: Any) -> Any:
    return np.asarray(values).astype(np.float16).view(np.uint16)


_E4M3 = {0.0: 0x00, 0.5: 0x30, 1.0: 0x38, 1.5: 0x3C, 2.0: 0x40, 3.0: 0x44, -1.0: 0xB8, -2.0: 0xC0, -0.5: 0xB0}


def _elements(rng: Any, kind: str, shape: tuple[int, int], exact: bool) -> Any:
    """Random element codes; exact ones have sums that f32 holds."""
    values = rng.integers(-4, 5, shape) / 2 if exact else rng.standard_normal(shape)
    if kind == "bf16":
        return bf16(values)
    if kind == "f16":
        return half(values)
    if kind == "tf32":
        return np.asarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    codes = np.array(list(_E4M3.values()), np.uint8)
    return (
        rng.choice(codes, shape)
        if exact
        else (rng.integers(0, 0x60, shape) | rng.integers(0, 2, shape) << 7).astype(np.uint8)
    )


def matrices() -> list[Case]:
    """ldmatrix, stmatrix, mma.sync."""
    found = [_case("matrices", [words(1, 512), np.zeros(512, np.uint32)], [1], 32)]
    for exact in (True, False):
        for entry, kind, a, b in (
            ("mma_f16", "f16", 4, 2),
            ("mma_bf16", "bf16", 4, 2),
            ("mma_tf32", "tf32", 4, 2),
            ("mma_e4m3", "e4m3", 4, 2),
            ("mma_f16_k8", "f16", 2, 1),
            ("mma_tf32_k4", "tf32", 2, 1),
            ("mma_f16_f16", "f16", 4, 2),
        ):
            rng = np.random.default_rng(len(found))
            per = {"f16": 2, "bf16": 2, "tf32": 1, "e4m3": 4}[kind]
            left = _elements(rng, kind, (a * 32, per), exact).reshape(-1).view(np.uint32)
            right = _elements(rng, kind, (b * 32, per), exact).reshape(-1).view(np.uint32)
            c = (rng.integers(-8, 9, 128) if exact else rng.standard_normal(128)).astype(np.float32).view(np.uint32)
            if entry == "mma_f16_f16":
                c = half(rng.integers(-8, 9, 256)).view(np.uint32)
            # e4m3 as e5m2 on the B side: same bytes, other values; still small powers of two.
            rule = "bits" if exact else "abs:2e-2" if entry == "mma_f16_f16" else "rel:2e-3"
            kind_out = "f16x2" if entry == "mma_f16_f16" else "f32"
            name = f"{entry}{'' if exact else ' (random)'}"
            found.append(
                _case(entry, [left, right, c, np.zeros(128, np.uint32)], [3], 32, name=name, rule=rule, kind=kind_out)
            )
    found.append(_case("mma_s8", [words(5, 128), words(6, 64), words(7, 128), np.zeros(128, np.uint32)], [3], 32))
    return found


def _image(codes: Any, size: int, span: int, *, mn: bool, lead: int = 0, stride: int = 0) -> Any:
    """Shared-memory image of an operand [rows, k] in the layout that its descriptor names."""
    rows, k = codes.shape
    r, c = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
    if mn:
        width = span or 16
        address = c // 8 * 8 * width + c % 8 * width + r * size
    elif span:
        address = r // 8 * 8 * span + r % 8 * span + c * size
    else:
        address = r // 8 * stride + r % 8 * 16 + c * size // 16 * lead + c * size % 16
    address = swizzled(address, span)
    image = np.zeros(rows * k * size, np.uint8)
    raw = codes.reshape(-1, 1).view(np.uint8).reshape(rows, k, size)
    for b in range(size):
        image[address + b] = raw[:, :, b]
    return image.view(np.uint32)


def _descriptor(span: int, lead: int, stride: int) -> int:
    code = {0: 0, 128: 1, 64: 2, 32: 3}[span]
    return (lead >> 4) << 16 | (stride >> 4) << 32 | code << 62


def wgmma() -> list[Case]:
    """wgmma with operands in shared memory (K-major and MN-major, several swizzles) and registers."""
    found = []
    for exact in (True, False):
        for entry, kind, size, a_form, b_form in (
            ("wgmma_bf16", "bf16", 2, ("k", 128), ("k", 128)),
            ("wgmma_bf16", "bf16", 2, ("k", 64), ("k", 32)),
            ("wgmma_f16_neg", "f16", 2, ("k", 128), ("k", 0)),
            ("wgmma_bf16_tb", "bf16", 2, ("k", 128), ("mn", 64)),
            ("wgmma_bf16_ta", "bf16", 2, ("mn", 128), ("k", 128)),
            ("wgmma_e4m3", "e4m3", 1, ("k", 0), ("k", 0)),
            ("wgmma_e4m3", "e4m3", 1, ("k", 64), ("k", 64)),
            ("wgmma_tf32", "tf32", 4, ("k", 128), ("k", 128)),
        ):
            rng = np.random.default_rng(100 + len(found))
            # K covers one swizzle span of the narrower operand, in steps of 32 bytes.
            spans = [form[1] for form in (a_form, b_form) if form[0] == "k" and form[1]]
            k = min(spans, default=64) // size
            steps = k * size // 32
            operands, strides = [], []
            for rows, (major, span) in ((64, a_form), (32, b_form)):
                codes = _elements(rng, kind, (rows, k), exact)
                if major == "mn":
                    image, d = _image(codes, size, span, mn=True), _descriptor(span, 1 << 4, 8 * span)
                    step = 2 * 8 * span
                elif span == 0:
                    image, d = (
                        _image(codes, size, 0, mn=False, lead=rows * 16, stride=128),
                        _descriptor(0, rows * 16, 128),
                    )
                    step = 2 * rows * 16
                else:
                    # A span wider than K: rows are still a span apart.
                    wide = np.zeros((rows, span // size), codes.dtype)
                    wide[:, :k] = codes
                    image, d, step = _image(wide, size, span, mn=False), _descriptor(span, 1 << 4, 8 * span), 32
                operands.append((image, d))
                strides.append(step)
            (a, da), (b, db) = operands
            args = [a, b, np.zeros(16 * 128, np.uint32), da, db, a.size, b.size, steps, strides[0], strides[1]]
            name = f"{entry} A {a_form[0]}{a_form[1]} B {b_form[0]}{b_form[1]}{'' if exact else ' (random)'}"
            rule = "bits" if exact else "rel:2e-3"
            smem = 1024 + (a.nbytes + 1023) // 1024 * 1024 + b.nbytes
            found.append(_case(entry, args, [2], 128, name=name, rule=rule, kind="f32", smem=smem))
    rng = np.random.default_rng(7)
    a = bf16(rng.integers(-4, 5, (8 * 128, 2)) / 2).reshape(-1).view(np.uint32)
    b = _image(bf16(rng.integers(-4, 5, (32, 64)) / 2), 2, 128, mn=False)
    args = [a, b, np.zeros(16 * 128, np.uint32), _descriptor(128, 16, 1024), b.size]
    found.append(_case("wgmma_rs", args, [2], 128, kind="f32", smem=1024 + b.nbytes))
    return found


def tensors() -> list[Case]:
    """Tensor copies: ranks, formats, swizzles, boxes that leave the tensor."""
    found = []
    forms = [
        ("tensor_1d", 0, (500,), (64,), 0, (480,)),
        ("tensor_1d", 7, (100,), (32,), 0, (-8,)),
        ("tensor_2d", 0, (256, 20), (128, 8), 128, (64, 4)),
        ("tensor_2d", 6, (96, 40), (64, 16), 128, (48, 30)),
        ("tensor_2d", 10, (64, 33), (32, 16), 64, (16, -3)),
        ("tensor_2d", 2, (64, 12), (8, 8), 32, (60, 2)),
        ("tensor_2d", 1, (72, 16), (24, 8), 0, (56, 12)),
        ("tensor_2d", 9, (20, 16), (4, 8), 32, (2, 3)),
        ("tensor_3d", 6, (64, 10, 5), (32, 8, 2), 64, (8, 5, 4)),
        ("tensor_3d", 0, (64, 9, 7), (16, 4, 4), 0, (16, 3, -1)),
    ]
    bits = {0: 8, 1: 16, 2: 32, 6: 16, 7: 32, 9: 64, 10: 16}
    for k, (entry, fmt, dims, box, swizzle, at) in enumerate(forms):
        size = bits[fmt] // 8
        pitch = (dims[0] * size + 15) // 16 * 16 + 32
        strides = [pitch]
        for extent in dims[1:-1]:
            strides.append(strides[-1] * extent)
        strides = strides[: len(dims) - 1]
        total = (strides[-1] * dims[-1] if strides else pitch) + 256
        source = np.random.default_rng(200 + k).integers(0, 256, total).astype(np.uint8)
        if fmt in (6, 7, 10):
            # No NaN patterns: a unit may replace them.
            source &= np.uint8(0x3F)
        target = np.full(total, 0x11, np.uint8)
        box_bytes = int(np.prod(box)) * size
        fields = {"format": fmt, "dims": dims, "strides": tuple(strides), "box": box, "swizzle": swizzle}
        coordinates = list(at) + [0] * (3 - len(at))
        args = [b"", b"", np.zeros(box_bytes, np.uint8), box_bytes, *coordinates, source, target]
        name = f"{entry} format {fmt} swizzle {swizzle}"
        maps = {0: (7, fields), 1: (8, fields)}
        found.append(_case(entry, args, [2, 8], 32, name=name, smem=1024 + box_bytes, maps=maps))
    fields = {"format": 7, "dims": (16, 8), "strides": (64,), "box": (16, 8), "swizzle": 0}
    numbers = np.random.default_rng(1).integers(-50, 50, 128).astype(np.float32)
    for fmt, data in ((7, numbers), (2, words(3, 128))):
        one = fields | {"format": fmt}
        args = [b"", b"", 512, data.copy(), data[::-1].copy()]
        found.append(
            _case(
                "tensor_reduce",
                args,
                [4],
                32,
                name=f"tensor_reduce format {fmt}",
                smem=2048,
                maps={0: (3, one), 1: (4, one)},
            )
        )
    data = np.random.default_rng(9).integers(0, 256, 4096).astype(np.uint8)
    fields = {"format": 0, "dims": (128, 8), "strides": (128,), "box": (32, 8), "swizzle": 32}
    args = [b"", data[1024:].copy(), np.zeros(256, np.uint8), np.zeros(256, np.uint8), 256, data]
    found.append(_case("tensor_replace", args, [3], 32, smem=2048, maps={0: (5, fields)}))
    fields = {"format": 0, "dims": (64, 16), "strides": (64,), "box": (64, 8), "swizzle": 64}
    args = [b"", np.zeros(2048, np.uint8), 512, data]
    found.append(_case("multicast", args, [1], 32, blocks=2, smem=3072, cluster=(2, 1, 1), maps={0: (3, fields)}))
    return found


def the_rest() -> list[Case]:
    """Lanes, memory, atomics, barriers, copies, clusters, variables."""
    u8 = np.random.default_rng(0).integers(0, 256, 8192).astype(np.uint8)
    floats = np.zeros(8, np.uint32)
    sixteen = np.zeros(64, np.uint32)
    sixteen[1], sixteen[3] = 0x7FFFFFFF, 0xFFFFFFFF
    return [
        _case("shuffles", [words(2, 32), np.zeros(20 * 32, np.uint32)], [1], 32),
        _case("votes", [words(3, 32), np.zeros(14 * 32, np.uint32)], [1], 32),
        _case("divergence", [words(4, 256), np.zeros(256, np.uint32)], [1], 128, blocks=2),
        _case("widths", [u8, np.zeros(32 * 256, np.uint8)], [1], 32),
        _case("atomics", [words(5, 256), sixteen, np.zeros(4, np.uint64), floats], [1, 2, 3], 128, blocks=2),
        _case("named_barriers", [words(6, 256), np.zeros(384, np.uint32)], [1], 128),
        _case("cp_async", [u8, np.zeros(4096, np.uint8)], [1], 64),
        _case("bulk", [u8, np.zeros(4096, np.uint8), words(7, 768)], [1, 2], 64, smem=4096),
        _case("cluster", [words(8, 512), np.zeros(1536, np.uint32)], [1], 64, blocks=8, cluster=(4, 1, 1)),
        _case("mbarriers", [words(9, 320), np.zeros(64, np.uint32)], [1], 64),
        _case("variables", [words(10, 32), np.zeros(32, np.uint32), 0x123456789ABC, np.uint16(777), 12.75], [1], 32),
        Case("grids", TEXT, "grids", [np.zeros(24 * 48, np.uint32)], [0], (3, 2, 4), (4, 6, 2)),
        _case("wide_integers", [words(11, 256).view(np.uint64), np.zeros(512, np.uint64)], [1], 64),
    ]


def cases() -> list[Case]:
    """Every case of this module."""
    return the_rest() + matrices() + tensors() + wgmma()
