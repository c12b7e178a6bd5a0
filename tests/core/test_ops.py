"""Ops and the manifest survive JSON, and every field takes part in identity."""

import json
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from moegen.core import enums
from moegen.core.canonical import canonical_json, digest, plain
from moegen.core.errors import StoreError
from moegen.core.ops import Activation, Numerics, OpSpec, op_from_json
from moegen.core.package import (
    Package,
    Pipeline,
    Source,
    Step,
    TargetPackage,
    read_manifest,
    write_manifest,
)

OP = OpSpec(
    kind=enums.OpKind.GEMM1,
    experts=5,
    top_k=2,
    hidden=80,
    intermediate=48,
    act_format=enums.ActFormat.NVFP4,
    epilogue=enums.Epilogue.FUSED_FP4,
    activation=Activation(kind=enums.ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=7.0),
    numerics=Numerics(),
    act_scale=enums.ActScale.STATIC,
    combine=enums.CombineMode.ORDERED,
    weight_pack="rows8",
)


def other(value: Any) -> Any:
    """Some other value that the same field could hold."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        members = list(type(value))
        return members[(members.index(value) + 1) % len(members)]
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, Numerics):
        return replace(value, contract=enums.Contract.TORCHAO)
    if isinstance(value, Activation):
        return replace(value, limit=6.0)
    raise AssertionError(f"no other value for {value!r}")


def test_op_round_trips_through_json() -> None:
    assert op_from_json(json.loads(canonical_json(OP))) == OP


@pytest.mark.parametrize("name", [f.name for f in fields(OpSpec)])
def test_every_field_changes_the_digest(name: str) -> None:
    changed = replace(OP, **{name: other(getattr(OP, name))})
    assert digest(changed, "op") != digest(OP, "op")


def test_unknown_op_field_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        op_from_json({**json.loads(canonical_json(OP)), "colour": 1})
    with pytest.raises(ValueError, match="gemm9"):
        op_from_json({**json.loads(canonical_json(OP)), "kind": "gemm9"})
    with pytest.raises(TypeError, match="unknown numerics"):
        op_from_json({**json.loads(canonical_json(OP)), "numerics": {"speed": "fast"}})


def test_digest_separates_domains_and_key_order_does_not_matter() -> None:
    assert digest({"a": 1, "b": 2}, "x") == digest({"b": 2, "a": 1}, "x")
    assert digest({"a": 1}, "x") != digest({"a": 1}, "y")


def test_values_without_one_text_are_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        plain({"a": {1, 2}})
    with pytest.raises(TypeError, match="object"):
        plain(object())


def package() -> Package:
    pipeline = Pipeline(
        name="fused_fp4-r8",
        target=enums.Target.CPU,
        epilogue=enums.Epilogue.FUSED_FP4,
        combine=enums.CombineMode.ORDERED,
        numerics=Numerics(),
        row_tile=8,
        steps=(Step(op=OP, variant="gemm1-x", scratch_fixed=16),),
        model_us=((1, 2.5), (8, 4.0)),
    )
    source = Source(variant="gemm1-x", path="cpu/gemm1_00.cc", digest="0" * 64, closure="1" * 64, symbol="gemm1")
    target = TargetPackage(
        default=pipeline.name, pipelines=(pipeline,), sources=(source,), rejected=(("compact", "why"),)
    )
    return Package(
        name="tiny", spec_digest="2" * 64, layer={"hidden": 80, "limit": 1.5}, targets={enums.Target.CPU: target}
    )


def test_manifest_round_trips_and_keeps_its_digest(tmp_path: Path) -> None:
    write_manifest(package(), tmp_path)
    again = read_manifest(tmp_path)
    assert again == package()
    assert again.digest == package().digest
    assert again.pipeline(enums.Target.CPU, "fused_fp4-r8").row_tile == 8
    with pytest.raises(KeyError):
        again.pipeline(enums.Target.CPU, "none")


@pytest.mark.parametrize(
    "damage",
    ["missing", "folder", "truncated", "schema", "field", "not an object", "too deep", "edited", "NaN", "huge"],
)
def test_a_damaged_manifest_names_the_file_and_the_remedy(tmp_path: Path, damage: str) -> None:
    path = write_manifest(package(), tmp_path)
    data = json.loads(path.read_text())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_text(path.read_text()[:-30])
    elif damage == "schema":
        path.write_text(json.dumps(data | {"schema": 99}))
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "not an object":
        path.write_text("[1]")
    elif damage == "too deep":
        path.write_text("[" * 100_000)
    elif damage in ("edited", "NaN", "huge"):
        value = {"edited": 1.25, "NaN": float("nan"), "huge": 10**30}[damage]
        path.write_text(json.dumps(data | {"layer": data["layer"] | {"limit": value}}))
    else:
        del data["targets"]["cpu"]["default"]
        path.write_text(json.dumps(data))
    with pytest.raises(StoreError) as caught:
        read_manifest(tmp_path)
    assert str(path) in str(caught.value)
    assert "moegen generate" in caught.value.fix or damage == "folder"
