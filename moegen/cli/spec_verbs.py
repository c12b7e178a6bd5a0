"""``moegen new``, ``validate`` and ``schema``: writing and checking spec files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from moegen.cli.console import show_json, show_line, show_note
from moegen.cli.options import AsJson, SpecFile
from moegen.core.errors import SpecError


def new(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; '-' prints.")] = Path("-"),
    checkpoint: Annotated[
        Path | None, typer.Option("--from-checkpoint", help="Folder with config.json of an NVFP4 checkpoint.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the spec.")] = None,
) -> None:
    """Write a spec: from a checkpoint's config.json, or a small one to edit."""
    text = _template(name) if checkpoint is None else spec_of_checkpoint(checkpoint, name)
    if str(output) == "-":
        show_line(text.rstrip())
        return
    if output.exists():
        raise SpecError("the file exists", str(output), "choose another --output, or remove it")
    output.write_text(text)
    show_note(f"wrote {output}; next: moegen validate {output}")


def validate(spec: SpecFile, as_json: AsJson = False) -> None:
    """Check a spec file; errors name file, line, field and remedy."""
    from moegen.spec import load_spec

    loaded = load_spec(spec)
    if as_json:
        show_json({"name": loaded.name, "digest": loaded.digest, "valid": True})
        return
    geometry = loaded.geometry
    held = "" if geometry.local_experts is None else f" ({geometry.local_experts} on a rank)"
    targets = ", ".join(target.value for target in loaded.targets)
    show_line(
        f"{spec}: valid. {loaded.name}: hidden {geometry.hidden}, intermediate {geometry.intermediate}, "
        f"{geometry.experts} experts{held}, top_k {geometry.top_k}; targets {targets}"
    )


def schema() -> None:
    """Print the JSON schema of spec files, for editors."""
    from moegen.spec import json_schema

    show_json(json_schema())


def _template(name: str | None) -> str:
    """The shipped quickstart, renamed: a spec that builds everywhere is the best thing to edit."""
    from moegen.core.paths import data_root
    from moegen.spec.load import validated
    from moegen.spec.source import read_document

    path = data_root("specs") / "quickstart.yaml"
    if name is None:
        return path.read_text()
    document = read_document(path)
    validated(replace(document, path=Path("--name"), data={**document.data, "name": name}, lines={}))
    return path.read_text().replace("name: quickstart", f"name: {name}", 1)


def spec_of_checkpoint(folder: Path, name: str | None = None) -> str:
    """YAML text of a spec for a checkpoint folder.

    Raises:
        SpecError: no readable config.json, or a model that no pipeline serves.
    """
    from moegen.spec import new_from_checkpoint

    config = _read_json(folder / "config.json")
    if config is None:
        raise SpecError("no config.json", str(folder), "give the folder of a checkpoint in Hugging Face form")
    quant = _read_json(folder / "hf_quant_config.json")
    return new_from_checkpoint(config, quant, name=name, source=f"config.json of {folder.resolve().name}")


def _read_json(path: Path) -> dict | None:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot be read ({error})", str(path), "download the checkpoint again") from error
    if not isinstance(data, dict):
        raise SpecError("not a JSON object", str(path), "download the checkpoint again")
    return data
