"""The private order of token rows on sm_90a, ``k64r8``: global memory holds what wgmma reads from shared memory.

Groups of 8 rows, K in chunks of 64 padded to whole 128-units: ``[group][chunk][8 rows][64]``, the 16-byte pieces of a
row XORed with its index in the group, K permuted inside a chunk: slot 16j + 8h + 2q + b holds k = 16q + 4j + 2h + b.
``templates/sm_90a/device/rows.cuh`` says why.
"""

import torch
from torch import Tensor

from moegen.core.abi import round_up
from moegen.core.errors import LayoutError

GROUP_ROWS, CHUNK_K, UNIT_K = 8, 64, 128


def _columns() -> Tensor:
    """k within a chunk of each slot, before pieces move: int64 ``[64]``."""
    slot = torch.arange(CHUNK_K)
    return 16 * (slot // 2 % 4) + 4 * (slot // 16) + 2 * (slot // 8 % 2) + slot % 2


def _slots() -> Tensor:
    """k within a chunk of each 16-bit slot of a row of the group: int64 ``[8, 64]``."""
    slot = torch.arange(CHUNK_K)
    row = torch.arange(GROUP_ROWS).view(-1, 1)
    piece, within = slot // 8, slot % 8
    return _columns()[(piece ^ row) * 8 + within]


class K64R8:
    """See the module; rows are a multiple of 8, elements have two bytes."""

    name = "k64r8"

    def pack(self, rows: Tensor) -> Tensor:
        """Row-major ``[R, K]`` to ``[R, K rounded up to 128]``, columns past K zero.

        Raises:
            LayoutError: R is not a multiple of 8.
        """
        count, columns = rows.shape
        if count % GROUP_ROWS:
            raise LayoutError(f"{count} rows", self.name, f"pad to a multiple of {GROUP_ROWS}")
        padded = round_up(columns, UNIT_K)
        grid = torch.nn.functional.pad(rows, (0, padded - columns)).view(-1, GROUP_ROWS, padded // CHUNK_K, CHUNK_K)
        index = _slots().to(rows.device).view(1, GROUP_ROWS, 1, CHUNK_K).expand_as(grid)
        return grid.gather(-1, index).transpose(1, 2).reshape(count, padded)

    def unpack(self, buffer: Tensor, columns: int) -> Tensor:
        """Inverse of :meth:`pack`: row-major ``[R, columns]``.

        Raises:
            LayoutError: the buffer's width is not that of ``columns``.
        """
        count, padded = buffer.shape
        if padded != round_up(columns, UNIT_K) or count % GROUP_ROWS:
            raise LayoutError(
                f"buffer of shape {tuple(buffer.shape)}", self.name, f"expected [R, {round_up(columns, UNIT_K)}]"
            )
        grid = buffer.view(-1, padded // CHUNK_K, GROUP_ROWS, CHUNK_K).transpose(1, 2)
        index = _slots().to(buffer.device).view(1, GROUP_ROWS, 1, CHUNK_K).expand_as(grid)
        return torch.empty_like(grid).scatter_(-1, index, grid).reshape(count, padded)[:, :columns]

    def arrange(self, tokens: Tensor) -> Tensor:
        """Tokens ``[T, K]``, any number, to ``[T, K rounded up to 128]``: K permuted inside chunks, pieces in place."""
        count, columns = tokens.shape
        padded = round_up(columns, UNIT_K)
        chunks = torch.nn.functional.pad(tokens, (0, padded - columns)).view(count, padded // CHUNK_K, CHUNK_K)
        return chunks[..., _columns().to(tokens.device)].reshape(count, padded)

    def restore(self, buffer: Tensor, columns: int) -> Tensor:
        """Inverse of :meth:`arrange`: row-major ``[T, columns]``.

        Raises:
            LayoutError: the buffer's width is not that of ``columns``.
        """
        count, padded = buffer.shape
        if padded != round_up(columns, UNIT_K):
            raise LayoutError(
                f"buffer of shape {tuple(buffer.shape)}", self.name, f"expected [T, {round_up(columns, UNIT_K)}]"
            )
        back = _columns().argsort().to(buffer.device)
        return buffer.view(count, padded // CHUNK_K, CHUNK_K)[..., back].reshape(count, padded)[:, :columns]
