"""The closed sets of choices a spec can make; every boundary uses these, never bare strings."""

from enum import Enum


class Target(str, Enum):
    """Instruction set a kernel is generated for."""

    CPU = "cpu"
    SM_90A = "sm_90a"
    SM_100A = "sm_100a"
    SM_103A = "sm_103a"


class OpKind(str, Enum):
    """One kernel's job; the values are also the exported symbols."""

    ROUTE = "route"
    QUANTIZE = "quantize"
    GATHER = "gather"
    ARRANGE = "arrange"
    GEMM1 = "gemm1"
    DEINTERLEAVE = "deinterleave"
    DEINTERLEAVE_QUANTIZE = "deinterleave_quantize"
    GEMM2 = "gemm2"
    COMBINE = "combine"
    BLOCK = "block"


class Epilogue(str, Enum):
    """What gemm1 writes."""

    INTERLEAVED = "interleaved"
    COMPACT = "compact"
    FUSED_FP4 = "fused_fp4"


class ActivationKind(str, Enum):
    """Activation between the two matrix products (definitions: ``moegen.numerics.activations``)."""

    SWIGLU = "swiglu"
    SWIGLU_OAI = "swiglu_oai"
    SWIGLU_CLAMP = "swiglu_clamp"
    SWIGLUSTEP = "swiglustep"
    SITU = "situ"
    GEGLU_TANH = "geglu_tanh"
    RELU2 = "relu2"
    SILU = "silu"

    @property
    def gated(self) -> bool:
        """True when the activation multiplies a gate half with an up half."""
        return self not in (ActivationKind.RELU2, ActivationKind.SILU)


class TokenDtype(str, Enum):
    """Dtype of hidden states and of unquantised intermediates."""

    BF16 = "bf16"
    FP16 = "fp16"


class ActFormat(str, Enum):
    """Operand format of the activations in both matrix products: W4A4 or W4A16."""

    NVFP4 = "nvfp4"
    BF16 = "bf16"


class ScaleLayout(str, Enum):
    """Order of E4M3 block scales in memory."""

    LINEAR = "linear"
    SWIZZLE_128X4 = "swizzle_128x4"


class ActScale(str, Enum):
    """Where the second-level activation scale comes from."""

    STATIC = "static"
    DYNAMIC_TENSOR = "dynamic_tensor"


class Contract(str, Enum):
    """Quantiser formula (``moegen.numerics.contracts``)."""

    TE = "te"
    VLLM_RN = "vllm_rn"
    CUTLASS_RN = "cutlass_rn"
    TORCHAO = "torchao"
    MODELOPT = "modelopt"
    COMPRESSED_TENSORS = "compressed_tensors"
    COMPRESSED_TENSORS_BF16 = "compressed_tensors_bf16"
    HALF_STEP = "half_step"


class Round(str, Enum):
    """Precision of a rounding point. A spec declares fp32 or bf16; fp16 is what storing rows in an fp16 layer does."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class RouterWeight(str, Enum):
    """Where a slot's router weight is multiplied in."""

    COMBINE = "combine"
    PRE_QUANT = "pre_quant"
    INPUT = "input"


class CombineMode(str, Enum):
    """Order of the sum over a token's k rows."""

    ORDERED = "ordered"
    ATOMIC = "atomic"


class ActivationMath(str, Enum):
    """Numerics class of exp and division in the activation."""

    EXACT = "exact"
    FAST = "fast"


class GateUpOrder(str, Enum):
    """Row order of a checkpoint's fused gate/up matrix."""

    GATE_UP = "gate_up"
    UP_GATE = "up_gate"
    INTERLEAVED = "interleaved"
