"""``moegen ptx``: run, trace and count recorded launches."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from moegen.ptx.launch import Result, load
from moegen.ptx.options import Numerics, Options, Policy
from moegen.ptx.record import replay

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Execute recorded launches of PTX kernels without a GPU."
)
_Recording = Annotated[
    Path, typer.Argument(help="File written by a capture session's recorder.", exists=True, dir_okay=False)
]
_Seed = Annotated[int, typer.Option(help="Seed of the schedule.")]
_Policy = Annotated[Policy, typer.Option(help="When asynchronous work happens.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _totals(results: list[Result]) -> dict[str, Any]:
    return {
        "instructions": sum(result.stats.instructions for result in results),
        "reports": [report.to_json() for result in results for report in result.reports],
    }


@app.command()
def run(
    recording: _Recording,
    seed: _Seed = 0,
    policy: _Policy = Policy.RANDOM,
    races: Annotated[bool, typer.Option(help="Detect races, missing fences and uninitialised reads.")] = True,
    numerics: Annotated[Numerics, typer.Option(help="How tensor cores accumulate.")] = Numerics.EXACT,
    as_json: _Json = False,
) -> None:
    """Replay a recording, check it, compare memory with what was recorded."""
    options = Options(seed=seed, policy=policy, races=races, numerics=numerics, stop_at_error=False)
    outcome = replay(recording, options)
    summary = _totals(outcome.results) | {"equal": outcome.equal, "differences": outcome.differences}
    errors = sum(len(result.errors) for result in outcome.results)
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        for result in outcome.results:
            for report in result.reports:
                typer.echo(str(report))
        for step, differences in enumerate(outcome.differences):
            for name, count in differences.items():
                typer.echo(f"step {step}: {count} bytes of {name} differ from the recording")
        state = "equal" if outcome.equal else "differs"
        typer.echo(f"{summary['instructions']} warp-instructions, {errors} errors, memory {state}")
    if errors or not outcome.equal:
        raise typer.Exit(1)


@app.command()
def trace(
    recording: _Recording,
    seed: _Seed = 0,
    policy: _Policy = Policy.RANDOM,
    cta: Annotated[int, typer.Option(help="Linear index of the CTA to follow.")] = 0,
    warp: Annotated[int, typer.Option(help="Warp to follow; -1 for all.")] = -1,
    limit: Annotated[int, typer.Option(help="Lines to print at most.")] = 1000,
) -> None:
    """Print the instructions that a CTA executes, in the order of one schedule."""
    lines: list[str] = []

    def follow(step: Any) -> None:
        if step.cta == cta and warp in (-1, step.warp) and len(lines) < limit:
            lines.append(f"warp {step.warp:2} line {step.line:5} {step.active:2} lanes  {step.text}")

    replay(recording, Options(seed=seed, policy=policy, trace=follow))
    for line in lines:
        typer.echo(line)


@app.command()
def stats(recording: _Recording, seed: _Seed = 0, as_json: _Json = False) -> None:
    """Count instructions per opcode and role, and bytes per memory space."""
    outcome = replay(recording, Options(seed=seed))
    table = [result.stats.to_json() for result in outcome.results]
    if as_json:
        typer.echo(json.dumps(table))
        return
    for number, step in enumerate(table):
        counts = f"{step['instructions']} warp-instructions, {step['asynchronous']} asynchronous operations"
        typer.echo(f"launches {number}: {counts}")
        for space, amount in sorted(step["bytes"].items()):
            typer.echo(f"  {space:16} {amount:14,} bytes")
        for role, part in step["roles"].items():
            typer.echo(f"  {role}, warps {part['warps']}: {sum(part['opcodes'].values())}")
            for opcode, count in sorted(part["opcodes"].items(), key=lambda item: -item[1]):
                typer.echo(f"    {count:10} {opcode}")


@app.command()
def check(text: Annotated[Path, typer.Argument(help="PTX file.", exists=True, dir_okay=False)]) -> None:
    """Load a PTX file: tells whether every instruction of it is implemented."""
    module = load(text.read_text(), str(text))
    for entry in module.entries:
        kernel = module.kernel(entry).entry
        typer.echo(f"{entry}: {len(kernel.instructions)} instructions, {kernel.param_bytes} parameter bytes")
