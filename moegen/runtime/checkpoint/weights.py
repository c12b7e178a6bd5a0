"""The experts of one layer in one canonical form, whatever the checkpoint called them."""

from dataclasses import dataclass, replace

import torch

from moegen.core.abi import BLOCK
from moegen.core.errors import CheckpointError
from moegen.numerics.layouts import SWIZZLE_128X4


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One matrix of every expert, ``N`` output rows by ``K`` inputs.

    Attributes:
        codes: uint8 ``[E, N, K/2]``, two E2M1 codes a byte, element 2i in the low nibble.
        scales: uint8 ``[E, N, K/16]``, E4M3 bytes, linear.
        second: fp32 ``[E]``, second-level scale in the multiply form (amax / 2688).
        input: fp32 ``[E]``, decode scale of the static input activations (amax / 2688); None when there is none.
        bias: fp32 ``[E, N]`` or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    second: torch.Tensor
    input: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def experts(self) -> int:
        """E, the experts in this bank."""
        return self.codes.shape[0]

    @property
    def rows(self) -> int:
        """N, outputs per expert."""
        return self.codes.shape[1]

    @property
    def columns(self) -> int:
        """K, inputs in elements."""
        return 2 * self.codes.shape[2]

    def experts_slice(self, first: int, count: int) -> "Projection":
        """Experts ``first … first + count - 1``: every tensor is cut by the same range."""
        cut = slice(first, first + count)
        return replace(
            self,
            codes=self.codes[cut],
            scales=self.scales[cut],
            second=self.second[cut],
            input=None if self.input is None else self.input[cut],
            bias=None if self.bias is None else self.bias[cut],
        )


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Gate, up and down projections of the experts ``first_expert …``; ``gate`` is None for an ungated activation.

    ``layer_input``: largest input scale of gemm1 over all experts of the layer, those of other ranks included (fp32
    scalar), so that every rank quantises a token alike; None: the largest of the experts held here.
    """

    gate: Projection | None
    up: Projection
    down: Projection
    first_expert: int = 0
    layer_input: torch.Tensor | None = None

    @property
    def experts(self) -> int:
        """E_local, the experts held here."""
        return self.up.experts

    def experts_slice(self, first: int, count: int) -> "ExpertWeights":
        """The experts ``first … first + count - 1`` of this bank, numbered as before."""
        return ExpertWeights(
            gate=None if self.gate is None else self.gate.experts_slice(first, count),
            up=self.up.experts_slice(first, count),
            down=self.down.experts_slice(first, count),
            first_expert=self.first_expert + first,
            layer_input=self.gemm1_input(),
        )

    def intermediate_slice(self, rank: int, ranks: int) -> "ExpertWeights":
        """One rank's share of I in tensor parallel: rows of gate and up, columns of down; outputs sum to the whole.

        down's bias stays with rank 0, since every rank's output is added.

        Raises:
            CheckpointError: a share of I is not a whole number of 16-element blocks, so a block scale would be cut.
        """
        share, rest = divmod(self.up.rows, ranks)
        if rest or share % BLOCK:
            raise CheckpointError(
                f"I = {self.up.rows} over {ranks} ranks cuts a block of {BLOCK}", "tensor parallel", "use fewer ranks"
            )
        rows = slice(rank * share, (rank + 1) * share)
        down = replace(
            self.down,
            codes=self.down.codes[:, :, rows.start // 2 : rows.stop // 2].contiguous(),
            scales=self.down.scales[:, :, rows.start // BLOCK : rows.stop // BLOCK].contiguous(),
            bias=None if self.down.bias is None else self.down.bias * (rank == 0),
        )
        return replace(
            self, gate=None if self.gate is None else _rows(self.gate, rows), up=_rows(self.up, rows), down=down
        )

    def gate_input(self) -> torch.Tensor | None:
        """fp32 ``[E]``: input scale of gemm1 per expert: the larger of gate's and up's, whichever was read first."""
        if self.up.input is None or self.gate is None or self.gate.input is None:
            return self.up.input
        return torch.maximum(self.gate.input, self.up.input)

    def gemm1_input(self) -> torch.Tensor | None:
        """The one input scale of gemm1 (fp32 scalar): the largest over gate, up and all experts; None without any."""
        if self.layer_input is not None:
            return self.layer_input
        inputs = self.gate_input()
        return None if inputs is None else inputs.max()


def _rows(side: Projection, rows: slice) -> Projection:
    return replace(
        side,
        codes=side.codes[:, rows].contiguous(),
        scales=side.scales[:, rows].contiguous(),
        bias=None if side.bias is None else side.bias[:, rows].contiguous(),
    )


def check_weights(weights: ExpertWeights, *, hidden: int, intermediate: int, where: str) -> None:
    """Checks dtypes, shapes and scale values of canonical weights against a layer's geometry.

    Raises:
        CheckpointError: everything that is wrong, in one error.
    """
    problems: list[str] = []
    sides = [("up", weights.up, intermediate, hidden), ("down", weights.down, hidden, intermediate)]
    if weights.gate is not None:
        sides.insert(0, ("gate", weights.gate, intermediate, hidden))
    for name, side, rows, columns in sides:
        problems += [f"{name}.{text}" for text in _side_problems(side, weights.experts, rows, columns)]
    if problems:
        raise CheckpointError(
            "; ".join(problems), where, "pass tensors of the layer that the package was generated for"
        )


def _side_problems(side: Projection, experts: int, rows: int, columns: int) -> list[str]:
    expected = {
        "codes": (side.codes, torch.uint8, (experts, rows, columns // 2)),
        "scales": (side.scales, torch.uint8, (experts, rows, columns // BLOCK)),
        "second": (side.second, torch.float32, (experts,)),
        "input": (side.input, torch.float32, (experts,)),
        "bias": (side.bias, torch.float32, (experts, rows)),
    }
    problems = []
    for field, (tensor, dtype, shape) in expected.items():
        if tensor is None:
            continue
        if tensor.dtype is not dtype:
            problems.append(f"{field} is {tensor.dtype}, expected {dtype}")
        elif tuple(tensor.shape) != shape:
            hint = _other_order(tuple(tensor.shape), shape) if field == "scales" else ""
            problems.append(f"{field} has shape {tuple(tensor.shape)}, expected {shape}{hint}")
        elif field in ("codes", "scales") and not tensor[0].is_contiguous():  # halves of a fused matrix are fine
            problems.append(f"{field} is a view with strides {tensor.stride()}, perhaps of a transposed matrix")
        elif field == "scales":
            # NVFP4 scales have no sign: tensor cores read the byte as ue4m3, whose top bit means nothing.
            for place in torch.nonzero(tensor >= 0x7F)[:8].tolist():
                byte = int(tensor[tuple(place)])
                problems.append(f"scales{place} is {'NaN' if byte & 0x7F == 0x7F else f'negative ({byte:#x})'}")
        elif field == "bias":
            places = torch.nonzero(~tensor.isfinite())[:8].tolist()
            problems += [f"bias{at} is {tensor[tuple(at)].item()}" for at in places]
        elif field in ("second", "input"):
            bad = torch.nonzero(~(tensor.isfinite() & (tensor > 0))).flatten().tolist()
            problems += [f"{field}[{expert}] is {tensor[expert].item()}, not a positive number" for expert in bad[:8]]
    return problems


def _other_order(shape: tuple[int, ...], linear: tuple[int, ...]) -> str:
    """What scales of the wrong shape seem to be."""
    experts, rows, columns = linear
    if shape == (experts, columns, rows):
        return ": it is transposed"
    if shape == (experts, *SWIZZLE_128X4.shape(rows, columns)):
        return ": it is swizzled already, and packing swizzles linear scales once"
    return ""
