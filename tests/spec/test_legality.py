"""The table of legal cells, written out once more by hand."""

from itertools import product

import pytest

from moegen.core.enums import ActFormat, ActScale, Epilogue, OpKind
from moegen.spec.legality import CELLS, middle, refusal

NVFP4, BF16 = ActFormat.NVFP4, ActFormat.BF16
INTERLEAVED, COMPACT, FUSED = Epilogue.INTERLEAVED, Epilogue.COMPACT, Epilogue.FUSED_FP4
STATIC, DYNAMIC = ActScale.STATIC, ActScale.DYNAMIC_TENSOR
#: (format, gated, epilogue, gemm2 scale) to the ops between the gemms, or to a fragment of the refusal.
EXPECTED = {
    (NVFP4, True, INTERLEAVED, STATIC): [OpKind.DEINTERLEAVE_QUANTIZE],
    (NVFP4, True, INTERLEAVED, DYNAMIC): [OpKind.DEINTERLEAVE_QUANTIZE],
    (NVFP4, True, COMPACT, STATIC): [OpKind.QUANTIZE],
    (NVFP4, True, COMPACT, DYNAMIC): [OpKind.QUANTIZE],
    (NVFP4, True, FUSED, STATIC): [],
    (NVFP4, True, FUSED, DYNAMIC): "needs a static gemm2 scale",
    (NVFP4, False, INTERLEAVED, STATIC): "has no gate",
    (NVFP4, False, INTERLEAVED, DYNAMIC): "has no gate",
    (NVFP4, False, COMPACT, STATIC): [OpKind.QUANTIZE],
    (NVFP4, False, COMPACT, DYNAMIC): [OpKind.QUANTIZE],
    (NVFP4, False, FUSED, STATIC): [],
    (NVFP4, False, FUSED, DYNAMIC): "needs a static gemm2 scale",
    (BF16, True, INTERLEAVED, None): [OpKind.DEINTERLEAVE],
    (BF16, True, COMPACT, None): [],
    (BF16, True, FUSED, None): "gemm2 reads bf16 rows",
    (BF16, False, INTERLEAVED, None): "has no gate",
    (BF16, False, COMPACT, None): [],
    (BF16, False, FUSED, None): "gemm2 reads bf16 rows",
}


@pytest.mark.parametrize(
    "cell", EXPECTED, ids=lambda cell: "-".join(str(getattr(part, "value", part)) for part in cell)
)
def test_cell(cell: tuple[ActFormat, bool, Epilogue, ActScale | None]) -> None:
    expected = EXPECTED[cell]
    found = refusal(*cell)
    if isinstance(expected, str):
        assert found is not None
        assert expected in found.reason
        assert found.fix
    else:
        assert found is None
        assert list(middle(*cell[:3])) == expected


def test_every_cell_of_the_table_is_expected() -> None:
    scales = {NVFP4: (STATIC, DYNAMIC), BF16: (None,)}
    every = {(f, g, e, s) for f, g, e in product(ActFormat, (True, False), Epilogue) for s in scales[f]}
    assert every == set(EXPECTED)
    assert set(CELLS) == {cell[:3] for cell, value in EXPECTED.items() if isinstance(value, list)}
