"""The layer's spec: what ``moegen new --from-checkpoint`` writes, narrowed to what a few minutes of CPU can build."""

import json
from pathlib import Path
from typing import Any

import yaml

from moegen.spec.checkpoint import new_from_checkpoint

#: The checkpoint was quantised by compressed-tensors, so activations are quantised by its formula too. Rounding to bf16
#: before the second quantisation puts all three epilogues into one numerics class.
NUMERICS = {"contract": "compressed_tensors", "pre_quant_round": "bf16"}
TUNE = {"tokens": [1, 8, 64], "routing": ["uniform"], "pipelines": 6}
CPU = {"rows": [1, 4, 16], "cols": [32], "k_chunk": [256], "unroll": [4]}


def write_spec(checkpoint: Path, path: Path, **sections: Any) -> Path:
    """Writes the spec of a checkpoint's experts to ``path``; ``sections`` replace top-level sections."""
    spec = yaml.safe_load(new_from_checkpoint(json.loads((checkpoint / "config.json").read_text())))
    spec["numerics"] |= NUMERICS
    spec |= {"targets": ["cpu"], "schedules": {"cpu": CPU}, "tune": TUNE} | sections
    path.write_text(yaml.safe_dump(spec, sort_keys=False, default_flow_style=None, width=120))
    return path
