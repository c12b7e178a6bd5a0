"""Bytes, flops and the roofline that catalogs build their time models from."""

from moegen.codegen.load import Load
from moegen.core.abi import BLOCK, code_pitch
from moegen.core.devices import DeviceFacts
from moegen.core.enums import Epilogue, OpKind
from moegen.core.ops import OpSpec

TOKEN_BYTES = 2
"""bf16 and fp16 alike."""


def fp4_bytes(columns: int) -> int:
    """Bytes of one row of E2M1 codes with its block scales."""
    return code_pitch(columns) + columns // BLOCK


def weight_bytes(op: OpSpec) -> int:
    """Bytes of one expert's weight matrix of a gemm, scales included, without padding."""
    return op.n * fp4_bytes(op.k)


def _row_bytes(op: OpSpec, columns: int) -> int:
    return fp4_bytes(columns) if op.reads_codes else TOKEN_BYTES * columns


def gemm_bytes(op: OpSpec, load: Load) -> float:
    """Bytes a gemm must move: the weights of hit experts once, its rows in, its rows out."""
    if op.kind is OpKind.GEMM2:
        out = 4 * op.hidden if op.fused_combine else TOKEN_BYTES * op.hidden
    elif op.epilogue is Epilogue.FUSED_FP4:
        out = fp4_bytes(op.intermediate)
    else:
        out = TOKEN_BYTES * op.intermediate * (2 if op.epilogue is Epilogue.INTERLEAVED else 1)
    return load.hit_experts * weight_bytes(op) + load.rows * (_row_bytes(op, op.k) + out)


def gemm_flops(op: OpSpec, load: Load) -> float:
    """Flops a gemm issues: every tile runs in full, padding rows included."""
    return 2.0 * load.tiles * op.row_tile * op.n * op.k


def stream_bytes(op: OpSpec, load: Load) -> float:
    """Bytes a memory-bound op must move."""
    h, i = TOKEN_BYTES * op.hidden, TOKEN_BYTES * op.intermediate
    quantised = _row_bytes(op, op.k)
    per_row = {
        OpKind.ROUTE: 24,
        OpKind.QUANTIZE: op.k * TOKEN_BYTES + quantised,
        OpKind.GATHER: 2 * h,
        OpKind.ARRANGE: 0,
        OpKind.DEINTERLEAVE: 3 * i,
        OpKind.DEINTERLEAVE_QUANTIZE: 2 * i + quantised,
        OpKind.COMBINE: h,
    }[op.kind]
    per_token = {OpKind.COMBINE: h, OpKind.ARRANGE: 2 * h}.get(op.kind, 0)
    return float(load.rows * per_row + load.tokens * per_token)


def roofline_us(device: DeviceFacts, moved: float, flops: float, occupancy: float = 1.0) -> float:
    """max(bandwidth, flops) plus one launch, in microseconds; ``occupancy`` is the share of the device's arithmetic in
    use, last partial wave included (see :func:`wave_occupancy`)."""
    return 1e6 * max(moved / device.read_bytes_s, flops / (device.flops_s * occupancy)) + device.launch_us


def wave_occupancy(tasks: float, slots: int) -> float:
    """Average share of ``slots`` that ``tasks`` equal tasks keep busy until the last one ends."""
    if tasks <= 0:
        return 1.0
    waves = -(-tasks // slots)
    return min(1.0, tasks / (waves * slots))
