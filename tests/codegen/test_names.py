"""Canonical names say everything, parse back, and depend on nothing outside the variant."""

import hashlib
import os
import subprocess
import sys
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField, expand
from moegen.codegen.variant import Variant, op_name, parse_op, parse_variant
from moegen.core import enums
from moegen.core.errors import IllegalVariant
from moegen.core.ops import Activation, Numerics, OpSpec

FAMILY = ScheduleFamily(
    target=enums.Target.SM_90A,
    name="swap",
    kinds=tuple(enums.OpKind),
    fields=(
        ScheduleField(name="rows", tag="r", doc="an int"),
        ScheduleField(name="ring", tag="ri", doc="an int whose tag starts like another's"),
        ScheduleField(name="pair", tag="p", doc="a bool", type="bool"),
        ScheduleField(name="order", tag="o", doc="a str", type="str"),
    ),
)
WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
SIZES = st.integers(min_value=0, max_value=1 << 40)
CONSTANTS = st.none() | st.floats(allow_nan=False, allow_infinity=False)


def optional(member: type[Enum]) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(list(member))


ACTIVATIONS = st.builds(
    Activation,
    kind=st.sampled_from(list(enums.ActivationKind)),
    alpha=CONSTANTS,
    beta=CONSTANTS,
    limit=CONSTANTS,
    linear_beta=CONSTANTS,
)
NUMERICS = st.builds(
    Numerics,
    contract=st.sampled_from(list(enums.Contract)),
    gate_round=st.sampled_from(list(enums.Round)),
    pre_quant_round=st.sampled_from(list(enums.Round)),
    router_weight=st.sampled_from(list(enums.RouterWeight)),
    activation_math=st.sampled_from(list(enums.ActivationMath)),
)
OPS = st.builds(
    OpSpec,
    kind=st.sampled_from(list(enums.OpKind)),
    experts=SIZES,
    top_k=SIZES,
    hidden=SIZES,
    intermediate=SIZES,
    dtype=st.sampled_from(list(enums.TokenDtype)),
    act_format=st.sampled_from(list(enums.ActFormat)),
    scale_layout=st.sampled_from(list(enums.ScaleLayout)),
    weight_scale_layout=st.sampled_from(list(enums.ScaleLayout)),
    row_tile=SIZES,
    epilogue=optional(enums.Epilogue),
    activation=st.none() | ACTIVATIONS,
    numerics=st.none() | NUMERICS,
    bias=st.booleans(),
    gather=st.booleans(),
    act_scale=optional(enums.ActScale),
    ids_int64=st.booleans(),
    combine=optional(enums.CombineMode),
    fused_combine=st.booleans(),
    weight_pack=st.just("") | WORDS,
    rows_layout=st.just("") | WORDS,
)
SCHEDULES = st.builds(FAMILY.make, rows=SIZES, ring=SIZES, pair=st.booleans(), order=WORDS)

OP = OpSpec(
    kind=enums.OpKind.GEMM1,
    experts=10,
    top_k=3,
    hidden=256,
    intermediate=160,
    epilogue=enums.Epilogue.FUSED_FP4,
    activation=Activation(kind=enums.ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=7.0),
    numerics=Numerics(),
)
SCHEDULE = FAMILY.make(rows=8, ring=3, pair=True, order="late_first")


def families(target: enums.Target, kind: enums.OpKind) -> tuple[ScheduleFamily, ...]:
    return (FAMILY,)


@given(OPS, SCHEDULES)
def test_names_round_trip(op: OpSpec, schedule: Schedule) -> None:
    variant = Variant(op=op, schedule=schedule)
    assert parse_variant(variant.name, families) == variant
    assert variant.name.isascii()
    assert not set(variant.name) & set("/\\ :\"'\n")


@given(OPS, OPS)
def test_equal_names_mean_equal_ops(one: OpSpec, other: OpSpec) -> None:
    assert (op_name(one) == op_name(other)) == (one == other)


def flips(value: Any) -> list[Any]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Enum):
        return [member for member in type(value) if member is not value]
    if isinstance(value, int | float):
        return [value + 1]
    return [value + "x"]


OPTIONAL: dict[str, list[Any]] = {
    "act_scale": list(enums.ActScale),
    "combine": list(enums.CombineMode),
    "weight_pack": ["rows8", "rows16"],
    "rows_layout": ["k128", "k64"],
    "epilogue": [None, enums.Epilogue.COMPACT, enums.Epilogue.INTERLEAVED],
    "activation": [None, *(Activation(kind=kind) for kind in enums.ActivationKind)],
    "numerics": [None],
}


@pytest.mark.parametrize("name", [field.name for field in fields(OpSpec)])
def test_any_changed_field_of_an_op_changes_name_and_digest(name: str) -> None:
    base = Variant(op=OP, schedule=SCHEDULE)
    others = OPTIONAL[name] if name in OPTIONAL else flips(getattr(OP, name))
    variants = [base, *(replace(base, op=replace(OP, **{name: other})) for other in others)]
    assert len({variant.name for variant in variants}) == len(variants)
    assert len({variant.digest for variant in variants}) == len(variants)


@pytest.mark.parametrize("name", [field.name for field in fields(Numerics)])
def test_any_changed_rounding_point_changes_the_name(name: str) -> None:
    numerics = Numerics()
    others = [replace(numerics, **{name: other}) for other in flips(getattr(numerics, name))]
    names = {op_name(replace(OP, numerics=value)) for value in [numerics, *others]}
    assert len(names) == len(others) + 1


@pytest.mark.parametrize("name", ["alpha", "beta", "limit", "linear_beta"])
def test_any_changed_constant_changes_the_name(name: str) -> None:
    assert OP.activation is not None
    constants = [None, 0.0, -0.5, 0.5, 1e-7, 1e22, 1.7019999]
    names = {op_name(replace(OP, activation=replace(OP.activation, **{name: value}))) for value in constants}
    assert len(names) == len(constants)


@pytest.mark.parametrize(("name", "other"), [("rows", 9), ("ring", 4), ("pair", False), ("order", "early_first")])
def test_any_changed_schedule_value_changes_the_name(name: str, other: Any) -> None:
    changed = FAMILY.make(**{**SCHEDULE.as_dict(), name: other})
    assert changed.name != SCHEDULE.name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gemm1",
        "gemm1-e10-k3-h256-i160-rt1--",
        "gemm1-e10-k3-h256-i160-rt1--sm_90a",
        "gemm1-e10-k3-h256-i160-rt1--sm_90a-other-r8-ri3-p1-o_x",
        "gemm1-e10-k3-h256-i160-rt1--sm_90a-swap-r8-ri3-p1",
        "gemm1-e10-k3-h256-i160-rt1--sm_90a-swap-r08-ri3-p1-o_x",
        "gemm1-e10-k3-h256-i160-rt1--sm_90a-swap-r8-ri3-p2-o_x",
        "gemm1-e10-k3-h256-i160-rt1--sm_90a-swap-ri3-r8-p1-o_x",
        "gemm1-k3-e10-h256-i160-rt1--sm_90a-swap-r8-ri3-p1-o_x",
        "gemm1-e010-k3-h256-i160-rt1--sm_90a-swap-r8-ri3-p1-o_x",
        "gemm1-e10-k3-h256-i160-rt1-te-te--sm_90a-swap-r8-ri3-p1-o_x",
        "gemm1-e10-k3-h256-i160-rt1-alpha1.0--sm_90a-swap-r8-ri3-p1-o_x",
        "gemm9-e10-k3-h256-i160-rt1--sm_90a-swap-r8-ri3-p1-o_x",
        "gemm1-e10-k3-h256-i160-rt1-zzz--sm_90a-swap-r8-ri3-p1-o_x",
    ],
)
def test_text_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(IllegalVariant):
        parse_variant(text, families)


def test_the_refused_texts_differ_from_a_good_one_in_one_place() -> None:
    good = "gemm1-e10-k3-h256-i160-rt1--sm_90a-swap-r8-ri3-p1-o_x"
    assert parse_variant(good, families).name == good
    assert parse_op(good.partition("--")[0]).experts == 10


@pytest.mark.parametrize(
    "values",
    [{"rows": 8}, {"rows": 8, "ring": 3, "pair": True, "order": "x", "more": 1}]
    + [
        {"rows": 8, "ring": 3, "pair": True, "order": "x"} | wrong
        for wrong in ({"rows": -1}, {"rows": True}, {"pair": 1})
    ]
    + [{"rows": 8, "ring": 3, "pair": True, "order": "x"} | wrong for wrong in ({"order": "A-b"}, {"order": ""})],
)
def test_a_family_refuses_wrong_values(values: dict[str, Any]) -> None:
    with pytest.raises(IllegalVariant):
        FAMILY.make(**values)


def test_expand_walks_every_combination_once() -> None:
    values = {"rows": (1, 2), "ring": (3,), "pair": (False, True), "order": ("a", "b")}
    found = expand(FAMILY, values, {"rows": 7})
    assert [schedule.name for schedule in found] == [
        f"sm_90a-swap-r7-ri3-p{pair}-o_{order}" for pair in (0, 1) for order in ("a", "b")
    ]


SCRIPT = """
from moegen.codegen.variant import Variant, parse_op
from moegen.codegen import registry
v = registry.parse_variant({name!r})
print(v.digest)
"""


def test_digest_does_not_depend_on_the_process(tmp_path: Path) -> None:
    name = "gemm2-e10-k0-h256-i160-rt8-w4a4-static-wp_rows8--cpu-panel-r8-c32-kc64-u2"
    root = Path(__file__).parents[2]
    digests = set()
    for seed, home in (("0", tmp_path / "a"), ("4711", tmp_path / "b")):
        home.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "HOME": str(home), "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(name=name)],
            cwd=home,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        digests.add(done.stdout)
    assert digests == {hashlib.sha256(f'moegen.variant\0"{name}"'.encode()).hexdigest() + "\n"}
