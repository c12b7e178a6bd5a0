"""Shared-memory swizzles: XOR of absolute byte-address bits, the same for tensor copies and matrix descriptors."""

from typing import Any

#: Swizzle span in bytes to (mask of the source bits, distance between them and the flipped bits).
_RULE = {32: (0x80, 3), 64: (0x180, 3), 128: (0x380, 3)}


def swizzle(addresses: Any, span: int) -> Any:
    """Swizzled byte addresses: bits 4-6 (128 B), 4-5 (64 B) or 4 (32 B) are flipped by the bits three places above.

    Args:
        addresses: integers or an integer array, absolute shared-memory byte addresses.
        span: 0 (none), 32, 64 or 128 bytes.
    """
    if not span:
        return addresses
    mask, distance = _RULE[span]
    if isinstance(addresses, int):
        return addresses ^ ((addresses & mask) >> distance)
    kind = addresses.dtype.type
    return addresses ^ ((addresses & kind(mask)) >> kind(distance))


def period(span: int) -> int:
    """Bytes after which the swizzle pattern repeats."""
    return 8 * span if span else 16
