"""Spec files: pydantic models, loading with line numbers, JSON schema, and specs written from checkpoints."""

from typing import Any

from moegen.spec.checkpoint import new_from_checkpoint
from moegen.spec.load import load_spec, located
from moegen.spec.models import LayerSpec

__all__ = ["LayerSpec", "json_schema", "load_spec", "located", "new_from_checkpoint"]


def json_schema() -> dict[str, Any]:
    """JSON schema of a spec file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **LayerSpec.model_json_schema()}
