"""Byte offsets of E4M3 block scales, per layout. ``columns`` counts scales of a row (K / 16), padding included."""

from cutlass import Int64


class Linear:
    """Row-major, no padding."""

    ROW_MULTIPLE = 1

    @staticmethod
    def offset(row, column, columns):
        return Int64(row) * columns + column


class Swizzle128x4:
    """Tiles of 128 rows by 4 columns, 512 bytes each; padding is part of the matrix and zero."""

    ROW_MULTIPLE = 128

    @staticmethod
    def offset(row, column, columns):
        tile = Int64(row // 128) * (columns // 4) + column // 4
        return tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + column % 4
