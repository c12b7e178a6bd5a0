"""Products instead of codes change nothing but the buffers between ops; kernels write the reference's bytes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from codegen.specs import spec
from hopper.cases import HopperCase, private_buffers, public
from hopper.products import BASE, FORMS, quantizing_cases
from hopper.workshop import Workshop, ladder_variant
from kernels.cases import buffers
from ptx.test_own_hopper import check

from moegen.codegen.catalogs.sm90 import CATALOG, LADDER
from moegen.codegen.planning import plan
from moegen.codegen.registry import parse_variant
from moegen.core.canonical import canonical_json
from moegen.core.devices import H200
from moegen.core.enums import Epilogue, OpKind, Target
from moegen.core.ops import op_from_json
from moegen.numerics.reference import run_pipeline
from moegen.runtime.workspace import plan_arena


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(Path(tmp_path_factory.mktemp("products")))


@pytest.mark.parametrize("name", FORMS)
def test_a_layer_gives_the_same_result_with_products(name: str) -> None:
    results = []
    for case in (FORMS[name], replace(FORMS[name], decoded=False)):
        given = buffers(case)
        for alpha in ("w1_alpha", "w2_alpha"):
            given[alpha] *= 0.01  # fp16 overflows early
        ops = [public(op) for op in case.pipeline()]
        assert any(op.decoded for op in ops) == case.decoded
        results.append(run_pipeline(ops, given, first_expert=case.first_expert)["y"])
    assert torch.equal(*results)
    assert results[0].isfinite().all()
    assert results[0].count_nonzero()


def test_an_epilogue_that_quantises_still_writes_codes() -> None:
    ops = FORMS["fused"].ops()
    assert ops[OpKind.GEMM1].decoded
    assert not ops[OpKind.GEMM2].decoded


def test_products_take_the_schedules_of_token_rows() -> None:
    products, codes = (replace(BASE, decoded=form).ops()[OpKind.GEMM1] for form in (True, False))
    wide, claimed = (LADDER.make(ladder=ladder, warpgroups=4, tiles=1, blocks=1) for ladder in ("n152_256", "n8"))
    assert CATALOG.verdict(products, wide, H200).legal
    assert CATALOG.verdict(codes, wide, H200).predicate == "token_width"
    assert products.weight_pack == codes.weight_pack
    variant = ladder_variant(products, "n8")
    assert parse_variant(variant.name) == variant
    assert variant.schedule == claimed
    assert op_from_json(json.loads(canonical_json(products))) == products
    assert b"decoded" not in canonical_json(codes)


def test_plans_offer_both_forms_and_share_their_packs() -> None:
    made = plan(spec(epilogues=("compact", "fused_fp4"), targets=("sm_90a",), schedules={}), Target.SM_90A)
    forms = {kept.candidate.shape.decoded: kept for kept in made.kept}
    assert set(forms) == {True, False}
    for pipeline in made.pipelines:
        buffers = plan_arena(pipeline, 100).regions
        reads = {name for name in ("x_codes", "x_products", "h_codes", "h_products") if name in buffers}
        assert reads in ({"x_codes", "h_codes"}, {"x_products", "h_products"}, {"x_products", "h_codes"})
    assert len({step.op.weight_pack for pipeline in made.pipelines for step in pipeline.steps}) == 2


@pytest.mark.parametrize("name", ["quantize_rows", "deinterleave_quantize"])
def test_quantising_ops_write_the_products_of_the_reference(workshop: Workshop, name: str) -> None:
    stream = quantizing_cases()[name]
    check(workshop, stream.variant(), stream.case, stream.given())


@pytest.mark.parametrize("kind", [OpKind.GEMM1, OpKind.GEMM2])
def test_gemms_read_products(workshop: Workshop, kind: OpKind) -> None:
    """A gate that reads one second-level scale of all rows, and an expert's own in the second product."""
    case = HopperCase(
        hidden=80, intermediate=144, experts=3, top_k=1, tokens=9, decoded=True, epilogue=Epilogue.INTERLEAVED
    )
    check(workshop, ladder_variant(case.ops()[kind], "n8", warpgroups=1), case, private_buffers(case, buffers(case)))
