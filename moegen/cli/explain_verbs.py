"""``moegen explain`` and ``inspect``: why a call runs what it runs, and what a checkpoint holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moegen.cli.console import show_json, show_line, show_table
from moegen.cli.options import GENERATED, AsJson, Generated, OneTarget, PackageOrSpec
from moegen.core.enums import Epilogue, Target
from moegen.core.errors import MoegenError

if TYPE_CHECKING:
    from moegen.core.package import Package
    from moegen.runtime import Checkpoint, Explanation
    from moegen.runtime.decision import Evidence
    from moegen.spec import LayerSpec


def explain(
    package: PackageOrSpec,
    tokens: Annotated[list[int], typer.Option("--tokens", help="Token count of the call; may be repeated.")],
    target: OneTarget = Target.CPU,
    routing: Annotated[str, typer.Option(help="Routing class whose trials decide: uniform, zipf=1, …")] = "uniform",
    epilogue: Annotated[
        Epilogue | None, typer.Option(help="Only this mode; one that rounds otherwise has tables of its own.")
    ] = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Decide as the tables' machine would; needs neither its device nor kernels."),
    ] = False,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Walk from a call back to the line of the spec: decision, table, trials, artifacts, sources."""
    from moegen.cli.packages import load_package
    from moegen.runtime import load
    from moegen.runtime.choice import Choice
    from moegen.runtime.explain import explain as why
    from moegen.runtime.explain import explain_offline

    directory, manifest = load_package(package, generated)
    if offline:
        evidence = _evidence(manifest, target, directory)
        choice = Choice(routing=routing, epilogue=epilogue)
        found = [explain_offline(manifest, directory, target, evidence, count, choice) for count in tokens]
    else:
        loaded = load(directory, target=target, routing=routing, epilogue=epilogue, max_tokens=max(*tokens, 1))
        found = [why(loaded, count) for count in tokens]
    if as_json:
        show_json([_plain(item) for item in found])
        return
    show_line("\n\n".join(str(item) for item in found))


def _evidence(package: "Package", target: Target, directory: Path) -> "list[Evidence]":
    """Every table of the layer, each as its own machine would find it."""
    from moegen.core.settings import read_settings
    from moegen.runtime.decision import Evidence
    from moegen.store.tables import TABLES, match
    from moegen.tune.tables import layer_tables

    package.offer(target, directory)  # refuses what the package has not
    offer, layer = package.offer_digest(target), package.layer_digest(target)
    return [
        Evidence(table=table, match=match(table, offer, table.environment, layer=layer), path=path)
        for path, table in layer_tables(package, target, [read_settings().home / TABLES])
    ]


def inspect(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Folder of a checkpoint.")],
    as_json: AsJson = False,
) -> None:
    """Show per layer what a loader would trip over: exclusions, missing tensors, scales of gate and up that differ."""
    import yaml

    from moegen.cli.spec_verbs import spec_of_checkpoint
    from moegen.runtime import Checkpoint
    from moegen.spec import LayerSpec

    spec = LayerSpec.model_validate(yaml.safe_load(spec_of_checkpoint(checkpoint)))
    opened = Checkpoint(checkpoint)
    rows = [_layer_row(opened, layer, spec) for layer in opened.layers]
    columns = ("layer", "experts", "format", "gate/up unequal", "largest ratio", "input scale", "spread", "problem")
    if as_json:
        show_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    show_table(columns, rows, str(checkpoint))
    if any(row[-1] for row in rows):
        raise typer.Exit(1)


def _layer_row(checkpoint: "Checkpoint", layer: int, spec: "LayerSpec") -> tuple[object, ...]:
    from moegen.runtime.bank import scale_report

    try:
        pattern = checkpoint.exclusion(layer)
        if pattern is not None:
            return layer, checkpoint.experts_total(layer), f"bf16 (excluded by {pattern})", None, None, None, None, ""
        weights = checkpoint.read_experts(
            layer,
            hidden=spec.geometry.hidden,
            intermediate=spec.geometry.intermediate,
            gated=spec.activation.kind.gated,
            bias=spec.weights.bias,
            static_inputs=spec.activations.activation_scale is not None,
        )
    except MoegenError as error:
        return layer, None, None, None, None, None, None, str(error)
    found = scale_report(weights)
    return (
        layer,
        weights.experts,
        "nvfp4",
        found.unequal_pairs,
        found.largest_ratio,
        found.gemm1_input,
        found.input_spread,
        "",
    )


def _plain(item: "Explanation") -> dict[str, Any]:
    decision = item.decision
    return {
        "package": item.package,
        "target": item.target,
        "device": item.device,
        "tokens": decision.tokens,
        "routing": decision.routing,
        "source": decision.source.value,
        "reason": decision.reason,
        "pipeline": decision.pipeline,
        "predicted_us": decision.predicted_us,
        "rivals": [list(rival) for rival in decision.rivals],
        "table": decision.table,
        "trials": list(item.trials),
        "steps": [
            {"op": s.op, "variant": s.variant, "source": str(s.source), "artifact": s.artifact} for s in item.steps
        ],
        "spec": [f"{path}:{line}" for path, line, _ in item.spec],
        "spec_digest": item.spec_digest,
        "workspace_bytes": item.workspace_bytes,
    }
