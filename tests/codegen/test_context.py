"""Templates see the render context and nothing else; what they would have to compute is computed before."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
from codegen.specs import spec
from jinja2 import meta, nodes

from moegen.codegen.catalog import Scratch
from moegen.codegen.context import ArgumentFacts, OpFacts, RenderContext, entry_arguments, op_facts, render_context
from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.codegen.registry import families
from moegen.codegen.render import environment
from moegen.codegen.schedule import ScheduleFamily
from moegen.core.abi import arguments
from moegen.core.enums import ActivationKind, CombineMode, Epilogue, OpKind, Target
from moegen.core.ops import Activation, OpSpec
from moegen.core.paths import data_root

ROOT = data_root("templates").resolve()
TEMPLATES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.j2"))
KERNELS = [name for name in TEMPLATES if not name.rpartition("/")[2].startswith("_")]
FIELDS = set(RenderContext.model_fields)


def parsed(name: str) -> nodes.Template:
    return environment(ROOT).parse((ROOT / name).read_text())


def gemm1() -> OpSpec:
    shape = Shape(epilogue=Epilogue.FUSED_FP4, combine=CombineMode.ORDERED, row_tile=4)
    return next(op for op in pipeline_ops(spec(), shape, ("rows8", "rows8")) if op.kind is OpKind.GEMM1)


def test_there_is_a_template_for_every_cpu_op() -> None:
    served = [kind for kind in OpKind if families(Target.CPU, kind)]
    assert {f"cpu/{kind.value}.cc.j2" for kind in served} <= set(KERNELS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_use_names_of_the_context_only(name: str) -> None:
    template = parsed(name)
    own = {node.name for node in template.find_all(nodes.Name) if node.ctx == "store"}
    assert meta.find_undeclared_variables(template) - own <= FIELDS | {"namespace"}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_use_the_names_that_every_kernel_needs(name: str) -> None:
    assert {"variant", "generator", "symbol", "arguments"} <= meta.find_undeclared_variables(parsed(name))


@pytest.mark.parametrize("name", TEMPLATES)
def test_fields_of_facts_exist(name: str) -> None:
    """``op.x`` and ``argument.x`` in any template, whether or not a test renders that line, name real fields."""
    known = {"op": set(OpFacts.model_fields), "argument": set(ArgumentFacts.model_fields)}
    for node in parsed(name).find_all(nodes.Getattr):
        if isinstance(node.node, nodes.Name) and node.node.name in known:
            assert node.attr in known[node.node.name], f"{node.node.name}.{node.attr}"


def test_every_name_of_the_context_is_used_somewhere() -> None:
    used = set().union(*(meta.find_undeclared_variables(parsed(name)) for name in TEMPLATES))
    assert used >= FIELDS


def test_unknown_names_and_globals_are_errors() -> None:
    for text in ("{{ absent }}", "{{ op.absent }}", "{{ range(3) }}", "{{ cycler }}", "{{ lipsum() }}"):
        with pytest.raises(jinja2.UndefinedError):
            environment(ROOT).from_string(text).render(op=op_facts(gemm1()))


def test_facts_of_a_ragged_gemm_are_literal() -> None:
    """H 256, I 160: 10 scale columns of h, 12 in the swizzled layout; 320 weight rows, 384 in the layout."""
    facts = op_facts(gemm1())
    expected: dict[str, Any] = {
        "kind": "gemm1",
        "experts": 10,
        "top_k": 3,
        "n": 320,
        "k": 256,
        "halves": 2,
        "row_tile": 4,
        "hidden_pitch": 128,
        "intermediate_pitch": 80,
        "k_pitch": 128,
        "hidden_scales": 16,
        "intermediate_scales": 10,
        "intermediate_scale_pitch": 12,
        "weight_scale_rows": 384,
        "weight_scale_pitch": 16,
        "token": "bf16",
        "gated": True,
        "w4a4": True,
        "epilogue": "fused_fp4",
        "fused_fp4": True,
        "interleaved": False,
        "compact": False,
        "swizzled_scales": True,
        "public_pack": True,
        "activation": "swiglu",
        "alpha": None,
        "contract": "te",
        "pre_quant_round_bf16": True,
        "router_weight": "combine",
    }
    assert {name: getattr(facts, name) for name in expected} == expected
    linear = op_facts(replace(gemm1(), scale_layout=type(gemm1().scale_layout).LINEAR))
    assert linear.intermediate_scale_pitch == 10


def test_a_pitch_is_rounded_up_to_16_bytes() -> None:
    assert op_facts(replace(gemm1(), hidden=80)).hidden_pitch == 48
    assert op_facts(replace(gemm1(), hidden=176)).k_pitch == 96


def test_constants_are_fp32_values_whose_text_is_a_literal() -> None:
    activation = Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=1e-7)
    facts = op_facts(replace(gemm1(), activation=activation))
    assert str(facts.alpha) == "1.7020000219345093"
    assert str(facts.beta) == "1.0"
    assert float(str(facts.limit)) == facts.limit != 1e-7
    assert re.fullmatch(r"[0-9.]+e-\d+", str(facts.limit))


def test_arguments_are_the_abi_then_scratch_then_threads() -> None:
    op = gemm1()
    names = [argument.name for argument in entry_arguments(op, Target.CPU, Scratch(fixed=64))]
    assert names == [*(argument.name for argument in arguments(op)), "scratch", "threads"]
    assert [argument.name for argument in entry_arguments(op, Target.SM_90A, Scratch())] == names[:-2]


def test_argument_facts_are_spelled_for_every_language() -> None:
    family = ScheduleFamily(target=Target.CPU, name="plain", kinds=(OpKind.GEMM1,))
    context = render_context(gemm1(), family.make(), "name", Scratch(per_row=4), ("cpu/device/gemm.h",))
    facts = {argument.name: argument for argument in context.arguments}
    assert (facts["h_codes"].c_type, facts["h_codes"].writable, facts["h_codes"].shape) == (
        "std::uint8_t",
        True,
        ("R", "IP"),
    )
    assert (facts["w1_alpha"].cuda_type, facts["w1_alpha"].dsl_type, facts["w1_alpha"].rank) == (
        "float",
        "cutlass.Float32",
        2,
    )
    assert (facts["scratch"].shape, facts["scratch"].writable) == (("*",), True)
    assert (facts["threads"].scalar, facts["threads"].c_type, facts["threads"].rank) == (True, "std::int64_t", 0)
    assert context.symbol == "gemm1"


def test_templates_hold_no_paths_of_this_machine() -> None:
    for name in TEMPLATES:
        assert str(Path.home()) not in (ROOT / name).read_text()
