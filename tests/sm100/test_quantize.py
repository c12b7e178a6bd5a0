"""The sm_100a quantiser: compiled without a GPU, its PTX run by the interpreter, bit for bit the reference."""

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi
from torch import Tensor

from moegen.build.cutedsl import CuTeDSL
from moegen.build.cutedsl_worker import OBJECT_FILE
from moegen.build.toolchain import CUBIN, OBJECT, PTX, CompileJob, Outcome, Status
from moegen.codegen.catalogs.sm100 import CATALOGS
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.abi import Dims, arguments
from moegen.core.devices import B200
from moegen.core.enums import ActFormat, ActScale, Contract, OpKind, RouterWeight, ScaleLayout, Target, TokenDtype
from moegen.core.ops import Numerics, OpSpec
from moegen.core.paths import data_root
from moegen.numerics.contracts import global_scale_pair
from moegen.numerics.reference import defined_rows, route, run_op
from moegen.ptx.capture import Session, runtime

TOP_K, EXPERTS, TILE = 3, 6, 16
POISON = 0xA5
BASE = OpSpec(
    kind=OpKind.QUANTIZE,
    experts=EXPERTS,
    top_k=TOP_K,
    hidden=80,
    intermediate=0,
    act_format=ActFormat.NVFP4,
    scale_layout=ScaleLayout.SWIZZLE_128X4,
    row_tile=TILE,
    numerics=Numerics(),
    gather=True,
    act_scale=ActScale.STATIC,
)
ROWS = replace(BASE, hidden=0, intermediate=176, gather=False)
CASES = {
    **{contract.value: replace(BASE, numerics=Numerics(contract=contract)) for contract in Contract},
    "linear": replace(BASE, scale_layout=ScaleLayout.LINEAR),
    "one block of 16": replace(BASE, hidden=16),
    "fp16, weight on input": replace(
        BASE, hidden=144, dtype=TokenDtype.FP16, numerics=Numerics(router_weight=RouterWeight.INPUT)
    ),
    "rows, one scale an expert": ROWS,
    "rows, linear, dynamic": replace(ROWS, act_scale=ActScale.DYNAMIC_TENSOR, scale_layout=ScaleLayout.LINEAR),
    **{
        f"dynamic {contract.value}": replace(
            BASE, act_scale=ActScale.DYNAMIC_TENSOR, numerics=Numerics(contract=contract)
        )
        for contract in (Contract.TE, Contract.TORCHAO, Contract.COMPRESSED_TENSORS, Contract.COMPRESSED_TENSORS_BF16)
    },
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every case, compiled in one batch."""
    folder = tmp_path_factory.mktemp("sm100")
    catalog = CATALOGS[Target.SM_100A]
    jobs = []
    for number, op in enumerate(CASES.values()):
        rendered = render(Variant(op=op, schedule=catalog.schedules(op, B200, None)[0]), catalog)
        path = folder / Path(rendered.source.path).name
        path.write_text(rendered.text)
        include = (data_root("templates").resolve(),)
        jobs.append(CompileJob(name=f"case{number}", source=path, symbol=rendered.source.symbol, include=include))
    outcomes: dict[str, Outcome] = {}
    names = dict(zip((job.name for job in jobs), CASES, strict=True))
    CuTeDSL("sm_100a").compile(jobs, folder, 1, lambda job, outcome: outcomes.__setitem__(names[job.name], outcome))
    return outcomes


class DLTensor(ctypes.Structure):
    """The head of DLPack's DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


def on_device(tensor: Tensor, rows_before: int = 0) -> Any:
    """The same memory, labelled as a GPU's: the stand-in runtime's global memory is host memory.

    ``rows_before``: rows that the tensor claims to have before its memory begins.
    """

    class Labelled:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            capsule = torch.utils.dlpack.to_dlpack(tensor)
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            described = DLTensor.from_address(pointer(capsule, b"dltensor"))
            described.device_type = 2
            described.shape[0] += rows_before
            described.data -= rows_before * tensor.stride(0) * tensor.element_size()
            return capsule

    return tvm_ffi.from_dlpack(Labelled())


def hostile_rows(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Values of many magnitudes; blocks of zeros, signed zeros, subnormals, infinities, NaNs and midpoints."""
    generator = torch.Generator().manual_seed(7)
    count = max(rows, 8)
    x = torch.randn(count, columns, generator=generator) * torch.logspace(-6, 4, count).unsqueeze(1)
    x[0] = 0.0
    x[1] = -0.0
    x[2, :16] = torch.tensor(
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -6.0]
    )
    x[3, 5] = float("inf")
    x[4, 7] = float("nan")
    x[5, :16] = 2.0**-133
    x[6, 3] = -float("inf")
    x[7, :16] = torch.tensor([1.0] + [1e-6] * 15)
    return x[:rows].to(dtype)


def buffers_of(op: OpSpec, tokens: int) -> dict[str, Tensor]:
    """Inputs of one call: a routing with an empty and a hot expert, and invalid ids; outputs poisoned."""
    generator = torch.Generator().manual_seed(11)
    ids = torch.rand(tokens, EXPERTS, generator=generator).argsort(dim=1)[:, :TOP_K]
    ids[ids == 4] = -1
    ids[1:2, 0] = EXPERTS
    held = dict(route(ids, experts=EXPERTS, row_tile=TILE).buffers())
    held["topk_weights"] = torch.rand(tokens, TOP_K, generator=generator)
    dtype = torch.float16 if op.dtype is TokenDtype.FP16 else torch.bfloat16
    rows = len(held["row_slot"])
    if op.gather:
        held["x"] = hostile_rows(tokens, op.hidden, dtype)
    else:
        held["h_rows"] = hostile_rows(rows, op.intermediate, dtype)
    contract = op.numerics.contract if op.numerics else Contract.TE
    scales = 1 if op.gather else EXPERTS
    pairs = global_scale_pair(torch.linspace(0.5, 300.0, scales), contract)
    dims = Dims(
        tokens=tokens, top_k=TOP_K, experts=EXPERTS, hidden=op.hidden, intermediate=op.intermediate, row_tile=TILE
    )
    for argument in arguments(op):
        if argument.access == "write" and argument.dtype == "u8":
            held[argument.name] = torch.full(dims.shape(argument), POISON, dtype=torch.uint8)
        elif argument.role == "scale":
            written = argument.access == "write"
            held[argument.name] = torch.full(dims.shape(argument), float("nan")) if written else pairs
    return held


def execute(outcome: Outcome, op: OpSpec, held: dict[str, Tensor], tokens_before_x: int = 0) -> None:
    """Calls the compiled entry; the interpreter runs its launches and reports nothing."""
    runtime()
    session = Session()
    session.add_ptx(outcome.files[PTX].read_text())
    entry = tvm_ffi.load_module(str(outcome.files[OBJECT]))[op.kind.value]
    tensors = [held[argument.name] for argument in arguments(op)]
    for tensor, argument in zip(tensors, arguments(op), strict=True):
        session.register(tensor, argument.name)
    labelled = [on_device(tensor, tokens_before_x if tensor is held.get("x") else 0) for tensor in tensors]
    assert session.call(entry, *labelled).reports == []


@pytest.mark.parametrize("name", CASES)
def test_bytes_equal_the_reference(name: str, built: dict[str, Outcome]) -> None:
    op, outcome = CASES[name], built[name]
    assert outcome.status is Status.OK, outcome.log
    assert set(outcome.files) == {OBJECT, OBJECT_FILE, PTX, CUBIN}
    held = buffers_of(op, tokens=29)
    written = run_op(op, held)
    execute(outcome, op, held)
    assert {argument.name for argument in arguments(op) if argument.access == "write"} == set(written)
    for buffer, expected in written.items():
        if buffer.endswith("_scale"):
            assert torch.equal(held[buffer], expected), buffer
            continue
        rows = defined_rows(buffer, held["totals"], held["row_slot"], op.scale_layout)
        got, want = held[buffer][rows], expected[rows]
        wrong = (got != want).nonzero()
        assert len(wrong) == 0, f"{buffer}: {len(wrong)} bytes, first {wrong[0].tolist()}"


def test_rows_past_the_last_are_left_alone(built: dict[str, Outcome]) -> None:
    held = buffers_of(BASE, tokens=29)
    execute(built["te"], BASE, held)
    padded = int(held["totals"][1])
    assert padded < len(held["x_codes"])
    assert (held["x_codes"][padded:] == POISON).all()
    assert (held["x_codes"][:padded, 40:] == 0).all(), "pitch padding is written"


@pytest.mark.parametrize("tokens", [0, 1])
def test_few_tokens(tokens: int, built: dict[str, Outcome]) -> None:
    held = buffers_of(BASE, tokens)
    written = run_op(BASE, held)
    execute(built["te"], BASE, held)
    for buffer, expected in written.items():
        rows = defined_rows(buffer, held["totals"], held["row_slot"], BASE.scale_layout)
        assert torch.equal(held[buffer][rows], expected[rows])


def test_no_valid_slot(built: dict[str, Outcome]) -> None:
    held = buffers_of(BASE, tokens=29)
    held["totals"].zero_()
    held["row_slot"].fill_(-1)
    execute(built["te"], BASE, held)
    assert (held["x_codes"] == POISON).all()
    assert (held["x_scales"] == POISON).all()


@pytest.mark.parametrize("name", CASES)
def test_arithmetic_is_the_contracts(name: str, built: dict[str, Outcome]) -> None:
    """No flushed subnormals, no approximate division, no contraction; conversions by the hardware's instructions."""
    ptx = built[name].files[PTX].read_text()
    assert ".target sm_100a" in ptx
    for forbidden in (".ftz", ".approx", "div.full", "fma.rn"):
        assert forbidden not in ptx
    assert "cvt.rn.satfinite.e2m1x2.f32" in ptx
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx
    assert built[name].files[CUBIN].read_bytes().startswith(b"\x7fELF")


def test_every_bf16_value(built: dict[str, Outcome]) -> None:
    """All 65,536 inputs, neighbours in value sharing blocks."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    tokens = -(-len(patterns) // BASE.hidden)
    x = torch.zeros(tokens * BASE.hidden, dtype=torch.int16)
    x[: len(patterns)] = patterns
    rows = -(-tokens // TILE) * TILE
    slots = torch.full((rows,), -1, dtype=torch.int32)
    slots[:tokens] = torch.arange(tokens, dtype=torch.int32) * TOP_K
    held = {
        "x": x.view(torch.bfloat16).view(tokens, BASE.hidden),
        "row_slot": slots,
        "totals": torch.tensor([rows // TILE, rows, tokens, 1], dtype=torch.int32),
        "x_scale": global_scale_pair(torch.tensor([448.0]), Contract.TE),
        "x_codes": torch.full((rows, 48), POISON, dtype=torch.uint8),
        "x_scales": torch.full((-(-rows // 128) * 128, 8), POISON, dtype=torch.uint8),
    }
    written = run_op(BASE, held)
    execute(built["te"], BASE, held)
    for buffer in ("x_codes", "x_scales"):
        assert torch.equal(held[buffer], written[buffer]), buffer


def test_gathered_rows_lie_beyond_32_bits(built: dict[str, Outcome]) -> None:
    """The only rows that exist are 5 GB past where ``x`` claims to begin."""
    held = buffers_of(BASE, tokens=29)
    written = run_op(BASE, held)
    skipped = 32_000_000
    moved = dict(held)
    moved["row_slot"] = torch.where(held["row_slot"] < 0, held["row_slot"], held["row_slot"] + skipped * TOP_K)
    execute(built["te"], BASE, moved, tokens_before_x=skipped)
    rows = defined_rows("x_codes", held["totals"], held["row_slot"], BASE.scale_layout)
    assert torch.equal(moved["x_codes"][rows], written["x_codes"][rows])
