"""Kernels compile without a GPU: no spills, wgmmas in flight, the instructions that the design counts on."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hopper.cases import HopperCase
from hopper.workshop import Workshop, ladder_variant, stream_variant

from moegen.build.nvcc import usage
from moegen.codegen.catalogs.sm90 import CATALOG, LADDER, shared_bytes
from moegen.codegen.variant import Variant
from moegen.core.enums import Epilogue, OpKind
from moegen.core.paths import data_root

W4A16 = HopperCase(hidden=272, intermediate=208, experts=5, top_k=2, w4a4=False, fused_gather=False)
FUSED = replace(W4A16, w4a4=True, epilogue=Epilogue.FUSED_FP4)
MIRRORED = ("elementary", "rounding", "activations", "e2m1", "e4m3")


def variants() -> dict[str, Variant]:
    """One of each kind of kernel: narrow, wide, decoding producer, fused quantiser, cluster, streams."""
    return {
        "compact": ladder_variant(W4A16.ops()[OpKind.GEMM1], "n8_80_256"),
        "fused": ladder_variant(FUSED.ops()[OpKind.GEMM1], "n16_128"),
        "route": stream_variant(W4A16.ops()[OpKind.ROUTE], route_blocks=8),
        "quantize": stream_variant(FUSED.ops()[OpKind.QUANTIZE]),
    }


@pytest.fixture(scope="module")
def built(hopper_workshop: Workshop) -> Workshop:
    hopper_workshop.prepare(list(variants().values()))
    return hopper_workshop


@pytest.mark.parametrize("name", ["compact", "fused", "route", "quantize"])
def test_kernels_neither_spill_nor_serialise(built: Workshop, name: str) -> None:
    log = built.log(variants()[name])
    assert usage(log)["spill_bytes"] == 0
    assert usage(log)["registers"] > 0
    assert not re.findall(r"C75\d\d", log), log


def test_each_width_is_a_kernel_of_its_own(built: Workshop) -> None:
    ptx = built.ptx(variants()["compact"])
    for width in (8, 80, 256):
        assert f".entry gemm1_w{width}(" in ptx
        body = ptx.split(f".entry gemm1_w{width}(")[1].split(".entry ")[0]
        shapes = set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", body))
        assert shapes == {str(width)}
        assert "cp.async.bulk.shared::cluster.global" in body
        assert "griddepcontrol.wait" in body


def test_shared_memory_of_source_and_catalog_agree(built: Workshop) -> None:
    """The static assertion in gemm_plan.h and the legality predicate must compute the same bytes."""
    op = W4A16.ops()[OpKind.GEMM1]
    schedule = LADDER.make(ladder="n8_80_256", warpgroups=4, tiles=1, blocks=1)
    plan = (data_root("templates") / "sm_90a/device/gemm_plan.h").read_text()
    limit = int(re.findall(r"kSharedLimit = (\d+)", plan)[0])
    stages = int(re.findall(r"kMaxStages = (\d+)", plan)[0])
    for width in (8, 80, 256):
        stage, fixed = shared_bytes(op, schedule, width)
        assert 2 * stage + fixed <= limit
        assert min(stages, (limit - fixed) // stage) >= 2


def test_no_source_holds_a_switch_over_modes() -> None:
    for variant in variants().values():
        text = Path(data_root("templates") / CATALOG.template(variant.op, variant.schedule)).read_text()
        assert "switch" not in text


@pytest.mark.parametrize("name", MIRRORED)
def test_the_exact_chain_is_written_as_on_the_cpu(name: str) -> None:
    """Both device libraries hold the same statements: only qualifiers and intrinsics may differ."""
    root = data_root("templates")
    cpu = (root / f"cpu/device/{name}.h").read_text()
    cuda = (root / f"sm_90a/device/{name}.cuh").read_text()
    assert _statements(cpu) == _statements(cuda)


def _statements(text: str) -> list[str]:
    code = re.sub(r"//[^\n]*|#[^\n]*", "", text)
    for found, plain in (
        (r"std::bit_cast<float>\(", "__uint_as_float("),
        (r"std::bit_cast<std::uint32_t>\(", "__float_as_uint("),
        (r"std::bit_cast<std::int32_t>\(", "__float_as_int("),
        (r"__builtin_fmaf", "__fmaf_rn"),
        (r"__device__|__forceinline__|\binline\b|\bconstexpr\b|std::", " "),
    ):
        code = re.sub(found, plain, code)
    return re.findall(r"\w+|[^\s\w]", code)
