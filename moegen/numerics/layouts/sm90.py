"""The private weight packs of sm_90a: units of 64 weight rows x 128 of K, in the order in which wgmma's threads
decode them.

``[expert][K unit][m64 tile][unit]``. A unit is 512 bytes of scales (4 for each of 128 threads) and 4096 of codes, two
64-chunks of K with 16 bytes a thread. When K ends within the first chunk of its last unit, that unit holds no second
chunk. ``templates/sm_90a/device/decode.cuh`` says where each bit goes and why: packs for bf16 operands differ from
those for fp16 ones (``_fp16``) in that alone. Scales are E5M3, so that every E4M3 is normal.

Rows of a 16-row slice (one warp's), g = row % 8, upper half h = row // 8:

- ``sm90_m64k128``, two halves: h 0 is the gate and h 1 the up row of channel 64·chunk + 16·(g/2) + 2·piece + g%2,
  where a chunk is two tiles and piece = 4·(tile%2) + warp: eight channels that lie side by side in the private row
  order.
- ``sm90_m64k128``, one half (W2): row 64·tile + 16·warp + 4·(g/2) + 2·h + g%2: four neighbours a thread.
- ``sm90_m64k128_pieces``, one half (ungated W1): channel of piece 2·warp + h of chunk = tile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch import Tensor

from moegen.core.abi import BLOCK
from moegen.core.enums import ScaleLayout
from moegen.core.errors import LayoutError
from moegen.numerics import e2m1
from moegen.numerics.e4m3 import NAN_BYTE
from moegen.numerics.layouts.packs import Halves, Projection, register_pack
from moegen.numerics.tensors import as_bytes

UNIT_K, UNIT_ROWS, CHUNK_K = 128, 64, 64
SCALE_BYTES, CHUNK_BYTES = 512, 2048
LARGEST_SCALE = 30 << 3 | 6
"""E5M3 of 448."""


@dataclass(frozen=True)
class Bits:
    """Where the decoder of one operand dtype expects bits.

    Attributes:
        codes: for each pair of a code word, the bits of sign, high and low exponent bit and mantissa of the code in the
            low half; those of the high half's lie 16 further on, past bit 31 from bit 0.
        scale: lowest bit of a scale byte in its half word.
    """

    codes: tuple[tuple[int, int, int, int], ...]
    scale: int

    def of(self, pair: int, half: int) -> tuple[int, ...]:
        """Bits of one code, from the sign down."""
        return tuple((bit + 16 * half) % 32 for bit in self.codes[pair])


BF16 = Bits(codes=((15, 8, 7, 6), (18, 11, 10, 9), (21, 14, 13, 12), (3, 1, 0, 4)), scale=4)
FP16 = Bits(codes=((15, 11, 10, 9), (18, 14, 13, 12), (0, 8, 7, 6), (1, 5, 4, 3)), scale=7)


@cache
def _encode_scales() -> Tensor:
    """E4M3 byte to E5M3 byte with exponent bias 22, 255 where there is none (NaN, negative)."""
    table = torch.full((256,), 255, dtype=torch.uint8, device="cpu")
    table[0] = 0
    for byte in range(1, 0x7F):
        exponent, mantissa = byte >> 3, byte & 7
        if exponent == 0:
            shift = 4 - mantissa.bit_length()
            table[byte] = (shift_exponent(-6 - shift) << 3) | (mantissa << shift & 7)
        else:
            table[byte] = shift_exponent(exponent - 7) << 3 | mantissa
    return table


@cache
def _decode_scales() -> Tensor:
    """Inverse of :func:`_encode_scales`; 0 for bytes that no E4M3 makes."""
    table = torch.zeros(256, dtype=torch.uint8, device="cpu")
    table[_encode_scales()[:NAN_BYTE].long()] = torch.arange(NAN_BYTE, dtype=torch.uint8, device="cpu")
    return table


def shift_exponent(exponent: int) -> int:
    """Biased exponent of 2^``exponent``: the kernel sees scale x 2^119 in bf16, scale x 2^7 in fp16."""
    return exponent + 22


def units_of(depth: int) -> tuple[int, bool]:
    """(K units, whether the last one is a half) of a depth in elements."""
    tail = depth % UNIT_K
    return -(-depth // UNIT_K), 0 < tail <= CHUNK_K


def expert_bytes(tiles: int, depth: int) -> int:
    """Packed bytes of one expert."""
    units, half = units_of(depth)
    return tiles * (units * (SCALE_BYTES + 2 * CHUNK_BYTES) - (CHUNK_BYTES if half else 0))


def _tile_rows(tiles: int, halves: int, pieces: bool) -> tuple[Tensor, Tensor]:
    """(half, row of that half) of every tile row: int64 ``[tiles, 4 warps, 2, 8]``."""
    tile = torch.arange(tiles).view(-1, 1, 1, 1)
    warp = torch.arange(4).view(1, -1, 1, 1)
    upper = torch.arange(2).view(1, 1, -1, 1)
    g = torch.arange(8).view(1, 1, 1, -1)
    zero = torch.zeros(tiles, 4, 2, 8, dtype=torch.int64)
    if halves == 2:
        row = tile // 2 * CHUNK_K + 16 * (g // 2) + 2 * (4 * (tile % 2) + warp) + g % 2
        return zero + upper, zero + row
    if pieces:
        return zero, zero + tile * CHUNK_K + 16 * (g // 2) + 2 * (2 * warp + upper) + g % 2
    return zero, zero + tile * UNIT_ROWS + 16 * warp + 4 * (g // 2) + 2 * upper + g % 2


@dataclass(frozen=True)
class Sm90Pack:
    """One of the packs; ``pieces`` chooses the row order of a single half, ``bits`` the operands' dtype."""

    name: str
    pieces: bool
    bits: Bits

    def tiles(self, halves: int, rows: int) -> int:
        """m64 tiles of one expert; ``rows`` are those of one half."""
        return halves * -(-rows // UNIT_ROWS)

    def pack(self, halves: Halves, layout: ScaleLayout) -> dict[str, Tensor]:
        """``packed [E, bytes]``.

        Raises:
            LayoutError: a scale is NaN or negative, or the halves differ in shape.
        """
        rows, depth = halves[0].rows, halves[0].depth
        if any((half.rows, half.depth) != (rows, depth) for half in halves):
            raise LayoutError("gate and up differ in shape", self.name, "pass halves of one matrix")
        if self.pieces and len(halves) != 1:
            raise LayoutError("two halves", self.name, "this pack serves a W1 without a gate")
        experts = [
            self._pack_expert(
                [as_bytes(half.codes, "codes")[e] for half in halves],
                [as_bytes(half.scales, "scales")[e] for half in halves],
                e,
            )
            for e in range(halves[0].experts)
        ]
        return {"packed": torch.stack(experts)}

    def unpack(
        self, tensors: Mapping[str, Tensor], *, rows: int, depth: int, halves: int, layout: ScaleLayout
    ) -> Halves:
        """The halves that were packed; the codes of a block whose scale is 0 come back as 0.

        Raises:
            LayoutError: the tensor's shape is not this pack's.
        """
        packed = tensors["packed"]
        self.validate(packed, rows=rows, depth=depth, halves=halves)
        parts = [self._unpack_expert(expert, rows, depth, halves) for expert in packed]
        return tuple(
            Projection(
                codes=torch.stack([codes[half] for codes, _ in parts]),
                scales=torch.stack([scales[half] for _, scales in parts]),
            )
            for half in range(halves)
        )

    def validate(self, packed: Tensor, *, rows: int, depth: int, halves: int) -> None:
        """Checks shape and scale bytes.

        Raises:
            LayoutError: ``where`` names the first expert, unit, tile and thread with a scale that no E4M3 makes.
        """
        tiles = self.tiles(halves, rows)
        wanted = expert_bytes(tiles, depth)
        if packed.dim() != 2 or packed.shape[1] != wanted:
            raise LayoutError(f"packed of shape {tuple(packed.shape)}", self.name, f"expected [E, {wanted}]")
        for expert, data in enumerate(packed):
            scales = _scale_bytes(_split(data, tiles, depth)[1], self.bits)
            wrong = torch.nonzero(scales > LARGEST_SCALE)
            if len(wrong):
                raise LayoutError(
                    f"scale byte {scales[tuple(wrong[0])]}", f"expert {expert}, {wrong[0].tolist()}", "pack again"
                )

    def _pack_expert(self, codes: list[Tensor], scales: list[Tensor], expert: int) -> Tensor:
        rows, depth = codes[0].shape[0], codes[0].shape[1] * 2
        tiles, (units, half_tail) = self.tiles(len(codes), rows), units_of(depth)
        device = codes[0].device
        columns = units * UNIT_K
        half, row = (index.to(device) for index in _tile_rows(tiles, len(codes), self.pieces))
        source = torch.where(row < rows, half * rows + row, len(codes) * rows).flatten()
        encoded = _encode_scales().to(device)[torch.cat(scales).long()]
        wrong = torch.nonzero(encoded == 255)
        if len(wrong):
            raise LayoutError(
                f"scale byte {int(torch.cat(scales)[tuple(wrong[0])]):#04x}",
                f"expert {expert}, row, block {wrong[0].tolist()}",
                "NaN and negative block scales have no place in a weight",
            )
        nibbles = e2m1.unpack(torch.cat(codes), depth)
        nibbles = torch.where(encoded.repeat_interleave(BLOCK, 1) == 0, 0, nibbles)
        nibbles = torch.nn.functional.pad(nibbles, (0, columns - depth, 0, 1))[source]
        encoded = torch.nn.functional.pad(encoded, (0, (columns - depth) // BLOCK, 0, 1))[source]
        words = _code_words(nibbles, tiles, units, self.bits)
        scale_words = _scale_words(encoded, tiles, units, self.bits)
        unit = torch.cat((scale_words.view(units, tiles, -1), words.view(units, tiles, -1)), -1)
        if not half_tail:
            return unit.flatten()
        return torch.cat((unit[:-1].flatten(), unit[-1, :, : SCALE_BYTES + CHUNK_BYTES].flatten()))

    def _unpack_expert(self, data: Tensor, rows: int, depth: int, halves: int) -> tuple[list[Tensor], list[Tensor]]:
        tiles, (units, _) = self.tiles(halves, rows), units_of(depth)
        words, scales = _split(data, tiles, depth)
        nibbles = _nibbles(words, tiles, units, self.bits)
        blocks = _decode_scales().to(data.device)[_scale_bytes(scales, self.bits).long()]
        half, row = (index.flatten().to(data.device) for index in _tile_rows(tiles, halves, self.pieces))
        found_codes, found_scales = [], []
        for part in range(halves):
            mine = (half == part) & (row < rows)
            order = torch.argsort(row[mine])
            found_codes.append(e2m1.pack(nibbles[mine][order][:, :depth], depth // 2))
            found_scales.append(blocks[mine][order][:, : depth // BLOCK])
        return found_codes, found_scales


def _code_words(nibbles: Tensor, tiles: int, units: int, bits: Bits) -> Tensor:
    """Codes ``[tiles * 64, units * 128]`` to bytes ``[units, tiles, 2 chunks, 128 threads, 16]``."""
    # [tile, warp, upper, g, unit, chunk, q, j, h, b]
    grid = nibbles.view(tiles, 4, 2, 8, units, 2, 4, 4, 2, 2).int()
    words = torch.zeros(tiles, 4, 8, units, 2, 4, 4, dtype=torch.int32, device=nibbles.device)
    for pair in range(4):
        for half in range(2):
            code = grid[:, :, pair & 1, :, :, :, :, :, pair >> 1, half]
            for shift, bit in zip((3, 2, 1, 0), bits.of(pair, half), strict=True):
                words |= (code >> shift & 1) << bit
    # [tile, warp, g, unit, chunk, q, j] -> [unit, tile, chunk, warp, g, q, j]
    return words.permute(3, 0, 4, 1, 2, 5, 6).contiguous().view(torch.uint8).view(units, tiles, -1)


def _nibbles(words: Tensor, tiles: int, units: int, bits: Bits) -> Tensor:
    """Inverse of :func:`_code_words`."""
    grid = words.contiguous().view(torch.int32).view(units, tiles, 2, 4, 8, 4, 4).permute(1, 3, 4, 0, 2, 5, 6)
    # [upper, h, b, bit from the sign down]; all at once, since each step is a launch where the weights are on a GPU
    places = [bits.of(upper + 2 * h, b) for upper, h, b in product(range(2), repeat=3)]
    shifts = torch.tensor(places, dtype=torch.int32, device=words.device).view(2, 2, 2, 4)
    found = (grid[..., None, None, None, None] >> shifts & 1).to(torch.uint8)
    codes = found[..., 0] << 3 | found[..., 1] << 2 | found[..., 2] << 1 | found[..., 3]
    return codes.permute(0, 1, 7, 2, 3, 4, 5, 6, 8, 9).reshape(tiles * UNIT_ROWS, units * UNIT_K)


def _scale_words(encoded: Tensor, tiles: int, units: int, bits: Bits) -> Tensor:
    """E5M3 bytes ``[tiles * 64, units * 8]`` to bytes ``[units, tiles, 512]``: chunk 0 at the decoder's bits of each
    half word, chunk 1 where a swap of the half word's bytes brings it there."""
    grid = encoded.view(tiles, 4, 2, 8, units, 2, 4).int()  # [tile, warp, upper, g, unit, chunk, q]
    words = torch.zeros(tiles, 4, 8, units, 4, dtype=torch.int32, device=encoded.device)
    for upper in range(2):
        first, second = (grid[:, :, upper, :, :, chunk] << bits.scale for chunk in range(2))
        words |= (first | _swap_bytes(second)) << (16 * upper)
    return words.permute(3, 0, 1, 2, 4).contiguous().view(torch.uint8).view(units, tiles, -1)


def _scale_bytes(scales: Tensor, bits: Bits) -> Tensor:
    """Inverse of :func:`_scale_words`: ``[tiles * 64, units * 8]``; a missing second chunk reads as stored."""
    units, tiles = scales.shape[0], scales.shape[1]
    grid = scales.contiguous().view(torch.int32).view(units, tiles, 4, 8, 4).permute(1, 2, 3, 0, 4)
    out = torch.zeros(tiles, 4, 2, 8, units, 2, 4, dtype=torch.uint8, device=scales.device)
    for upper in range(2):
        word = grid >> (16 * upper) & 0xFFFF
        for chunk, half in enumerate((word, _swap_bytes(word))):
            out[:, :, upper, :, :, chunk] = (half >> bits.scale & 255).to(torch.uint8)
    return out.view(tiles * UNIT_ROWS, units * (UNIT_K // BLOCK))


def _swap_bytes(half_words: Tensor) -> Tensor:
    return (half_words & 255) << 8 | half_words >> 8


def _split(data: Tensor, tiles: int, depth: int) -> tuple[Tensor, Tensor]:
    """(code bytes ``[units, tiles, 4096]``, scale bytes ``[units, tiles, 512]``) of one expert."""
    units, half_tail = units_of(depth)
    full = units - half_tail
    unit_bytes = SCALE_BYTES + 2 * CHUNK_BYTES
    body = data[: full * tiles * unit_bytes].view(full, tiles, unit_bytes)
    if half_tail:
        tail = data[body.numel() :].view(1, tiles, -1)
        body = torch.cat((body, torch.nn.functional.pad(tail, (0, CHUNK_BYTES))))
    return body[..., SCALE_BYTES:], body[..., :SCALE_BYTES]


PACK = Sm90Pack("sm90_m64k128", pieces=False, bits=BF16)
PIECES = Sm90Pack("sm90_m64k128_pieces", pieces=True, bits=BF16)
PACK_FP16 = Sm90Pack("sm90_m64k128_fp16", pieces=False, bits=FP16)
PIECES_FP16 = Sm90Pack("sm90_m64k128_pieces_fp16", pieces=True, bits=FP16)
for _pack in (PACK, PIECES, PACK_FP16, PIECES_FP16):
    register_pack(_pack)
