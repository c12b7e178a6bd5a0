"""Runs a package on the torch reference: each artifact holds the op it stands for, each launch is ``run_op``.

With it the whole runtime works on any machine without a compiler, and every buffer a pipeline leaves behind can be
compared with what the reference says.
"""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch

from moegen.core.abi import arguments
from moegen.core.canonical import canonical_json
from moegen.core.devices import CPU_GENERIC, DeviceFacts
from moegen.core.enums import Target
from moegen.core.ops import OpSpec, op_from_json
from moegen.core.package import Package, Step
from moegen.core.runner import Kernel
from moegen.numerics.reference import run_op
from moegen.store.artifacts import ArtifactStore
from moegen.store.bundles import write_bundle
from moegen.store.keys import ArtifactKey

ARCH = "reference"
OP = "op.json"


class ReferenceRunner:
    """A Runner whose kernels are the reference functions; ``launches`` logs the ops in order."""

    def __init__(self) -> None:
        self.launches: list[str] = []

    @property
    def device_type(self) -> str:
        return "cpu"

    @property
    def facts(self) -> DeviceFacts:
        return replace(CPU_GENERIC, name="torch reference", arch=ARCH)

    def load(self, directory: Path, symbol: str) -> Kernel:
        op = op_from_json(json.loads((directory / OP).read_text()))
        assert op.kind.value == symbol

        def launch(*values: object) -> None:
            self.launches.append(op.kind.value)
            _launch(op, values)

        return launch


def _launch(op: OpSpec, values: tuple[object, ...]) -> None:
    parameters = arguments(op)
    by_name = {parameter.name: value for parameter, value in zip(parameters, values, strict=False)}
    first_expert = by_name.pop("first_expert", 0)
    assert isinstance(first_expert, int)
    buffers = {name: value for name, value in by_name.items() if isinstance(value, torch.Tensor)}
    for name, tensor in run_op(op, buffers, first_expert=first_expert).items():
        assert buffers[name].shape == tensor.shape, (
            f"{op.kind.value} got {name} {buffers[name].shape}, wrote {tensor.shape}"
        )
        buffers[name].copy_(tensor)


def publish_reference(package: Package, target: Target, store: ArtifactStore) -> None:
    """Does for the reference what ``moegen build`` does for a compiler: artifacts and a bundle."""
    steps: dict[str, Step] = {step.variant: step for item in package.targets[target].pipelines for step in item.steps}
    keys = {}
    for variant, step in steps.items():
        text = canonical_json(step.op)
        key = ArtifactKey(
            source=sha256(text).hexdigest(),
            closure="",
            toolchain=(("reference", "1"),),
            arch=ARCH,
            options=(),
            symbol=step.op.kind.value,
            abi="python",
        )
        store.publish(key, {OP: text}, {"variant": variant})
        keys[variant] = key.digest
    write_bundle(store, package.digest, ARCH, keys)
