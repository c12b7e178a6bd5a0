"""A package's pipelines on one device, each bound to real buffers, for measuring and for checking."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from moegen.core.abi import arguments
from moegen.core.enums import Target
from moegen.core.package import Pipeline, read_manifest
from moegen.core.runner import Runner
from moegen.core.settings import read_settings
from moegen.numerics.reference import run_pipeline
from moegen.runtime.bank import Bank, pack_bank
from moegen.runtime.checkpoint import ExpertWeights
from moegen.runtime.engine import BoundPipeline, bind
from moegen.runtime.kernels import KernelBook
from moegen.runtime.runners import default_runner
from moegen.runtime.workspace import Workspace, plan_arena
from moegen.store.artifacts import ArtifactStore
from moegen.tune.inputs import TokenInputs


@dataclass
class Rig:
    """Built pipelines with one set of weights, ready to run any of them at any token count.

    Args:
        book: the package's kernels.
        pipelines: built ones, by name.
        weights: canonical weights.
        device: where kernels run.
    """

    book: KernelBook
    pipelines: Mapping[str, Pipeline]
    weights: ExpertWeights
    device: torch.device

    def __post_init__(self) -> None:
        self.bank: Bank = pack_bank(self.weights, self.pipelines.values(), self.device)
        self.tokens = 0
        self._bound: dict[tuple[str, bool], BoundPipeline] = {}
        self._workspaces: dict[bool, Workspace] = {}

    def bound(self, name: str, tokens: int, *, reuse: bool = True) -> BoundPipeline:
        """A pipeline bound to buffers for exactly ``tokens`` tokens; bindings of another token count are dropped.

        With ``reuse`` as in serving; without it no step overwrites what an earlier one has read, so that after a whole
        call any step can be repeated alone.
        """
        if tokens != self.tokens:
            self._bound.clear()
            self._workspaces.clear()
            self.tokens = tokens
        if reuse not in self._workspaces:
            plans = {name: plan_arena(pipeline, tokens, reuse=reuse) for name, pipeline in self.pipelines.items()}
            self._workspaces[reuse] = Workspace(plans, self.device)
        if (name, reuse) not in self._bound:
            workspace = self._workspaces[reuse]
            self._bound[name, reuse] = bind(self.pipelines[name], tokens, workspace, self.bank, self.book.kernel)
        return self._bound[name, reuse]

    def run(self, name: str, inputs: TokenInputs, *, poison: int | None = None) -> torch.Tensor:
        """Output ``[T, H]`` of one call; ``poison`` fills output and buffers with that byte beforehand."""
        bound = self.bound(name, inputs.x.shape[0])
        y = torch.empty_like(inputs.x)
        if poison is not None:
            for buffer in (y, *bound.buffers.values()):
                buffer.view(torch.uint8).fill_(poison)
        bound.launch(inputs.x, inputs.topk_ids, inputs.topk_weights, y, self.weights.first_expert)
        return y

    def reference(self, name: str, inputs: TokenInputs) -> dict[str, torch.Tensor]:
        """Every buffer of a pipeline, ``y`` among them, as the torch reference computes it on the rig's device.

        Only the products are the device's own, and those in fp64; everything else is written out in single roundings.
        """
        ops = [step.op for step in self.pipelines[name].steps]
        buffers = {"x": inputs.x, "topk_ids": inputs.topk_ids, "topk_weights": inputs.topk_weights}
        for op in ops:
            for argument in arguments(op):
                tensor = self.bank.get(op, argument)
                if tensor is not None:
                    buffers[argument.name] = tensor
        with self.device:
            return run_pipeline(ops, buffers, first_expert=self.weights.first_expert)


def open_book(package_dir: Path, target: Target, runner: Runner | None = None) -> KernelBook:
    """A package's kernels on this machine.

    Raises:
        StoreError: there is no package.
        MoegenError: it has no such target, or the machine no such device.
    """
    package = read_manifest(package_dir)
    package.offer(target, package_dir)
    return KernelBook(
        package=package,
        directory=package_dir,
        target=target,
        runner=runner or default_runner(target),
        store=ArtifactStore.from_settings(read_settings()),
    )


def built_pipelines(book: KernelBook) -> dict[str, Pipeline]:
    """The built pipelines of a book by name, in the manifest's order; empty when there is none."""
    offered = book.package.targets[book.target].pipelines
    return {pipeline.name: pipeline for pipeline in offered if book.is_built(pipeline)}


def make_rig(book: KernelBook, weights: ExpertWeights) -> Rig:
    """A rig of every built pipeline; raises NotBuilt when there is none."""
    book.built()
    return Rig(
        book=book, pipelines=built_pipelines(book), weights=weights, device=torch.device(book.runner.device_type)
    )
