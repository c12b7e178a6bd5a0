"""A generated package, loaded: its manifest, its built kernels, and the layers made of it."""

import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch

from moegen.core.enums import CombineMode, Epilogue, GateUpOrder, Target
from moegen.core.errors import CheckpointError, MoegenError
from moegen.core.ops import Numerics, OpSpec
from moegen.core.package import Package, Pipeline, read_manifest
from moegen.core.paths import data_root
from moegen.core.runner import Runner
from moegen.core.settings import read_settings
from moegen.runtime.bank import Bank, pack_bank, static_sides
from moegen.runtime.calibration import with_calibrated_inputs
from moegen.runtime.checkpoint import Checkpoint, ExpertWeights
from moegen.runtime.checkpoint.weights import check_weights
from moegen.runtime.choice import Choice, candidates
from moegen.runtime.decision import UNIFORM, Decider, Evidence
from moegen.runtime.engine import Engine
from moegen.runtime.environment import current_environment
from moegen.runtime.kernels import KernelBook
from moegen.runtime.layer import MoELayer
from moegen.runtime.pool import WorkspacePool
from moegen.runtime.runners import default_runner, default_target
from moegen.runtime.workspace import ArenaPlan, main_op, plan_arena
from moegen.store.artifacts import ArtifactStore
from moegen.store.tables import TABLES, find_tables

_Choice = TypeVar("_Choice", Epilogue, CombineMode)


def load(
    path: str | Path,
    *,
    target: Target | str | None = None,
    runner: Runner | None = None,
    max_tokens: int | None = None,
    epilogue: Epilogue | str | None = None,
    combine: CombineMode | str | None = None,
    numerics: Numerics | None = None,
    pipeline: str | None = None,
    routing: str = UNIFORM,
    store: ArtifactStore | None = None,
) -> "LoadedPackage":
    """Loads a generated package for serving. Compiles nothing, measures nothing, allocates nothing on a device.

    Args:
        path: folder that ``moegen generate`` wrote.
        target: by default this machine's GPU when the package has kernels for it, else the CPU.
        runner: how kernels are launched; by default what the target needs on this machine.
        max_tokens: most tokens of one call; by default the largest token count that the spec tunes for.
        epilogue, combine, numerics, pipeline: narrow the pipelines to choose from (:class:`Choice`).
        routing: routing class whose trials decide.
        store: where artifacts and tables are; by default what MOEGEN_PACKS and MOEGEN_HOME name.

    Raises:
        StoreError: no manifest there, or a damaged one.
        MoegenError: the package has no such target, or no pipeline fits.
        NotBuilt: pipelines fit, none is built; the message holds the command.
    """
    directory = Path(path)
    package = read_manifest(directory)
    chosen = default_target(tuple(package.targets)) if target is None else target
    if chosen not in package.targets:
        names = ", ".join(item.value for item in package.targets)
        raise MoegenError(
            f"no target {getattr(chosen, 'value', chosen)} (it has {names})",
            str(directory),
            "add it to the spec's targets, then moegen generate",
        )
    chosen = Target(chosen)
    if max_tokens is not None and max_tokens < 1:
        raise MoegenError(f"max_tokens is {max_tokens}", str(directory), "give the most tokens of one call")
    return LoadedPackage(
        package=package,
        directory=directory,
        target=chosen,
        runner=runner or default_runner(chosen),
        store=store or ArtifactStore.from_settings(read_settings()),
        max_tokens=max_tokens or max(package.layer["tune"]["tokens"]),
        choice=Choice(
            epilogue=None if epilogue is None else _member(Epilogue, epilogue, "epilogue"),
            combine=None if combine is None else _member(CombineMode, combine, "combine"),
            numerics=numerics,
            pipeline=pipeline,
            routing=routing,
        ),
    )


def _member(kind: type[_Choice], value: str, name: str) -> _Choice:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(member.value for member in kind)
        raise MoegenError(f"{name} {value!r} is not known", "moegen.load", f"use one of {known}") from error


@dataclass(kw_only=True)
class LoadedPackage:
    """A package on one target of this machine; layers made of it share kernels, decisions and workspaces.

    Attributes:
        package: the manifest.
        directory: the package's folder.
        target: whose kernels.
        runner: how they are launched.
        store: where they are.
        max_tokens: most tokens of one call.
        choice: what the caller asked for.
        pipelines: the pipelines that some T up to ``max_tokens`` is given, by name.
    """

    package: Package
    directory: Path
    target: Target
    runner: Runner
    store: ArtifactStore
    max_tokens: int
    choice: Choice
    _pools: dict[torch.device, WorkspacePool] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.book = KernelBook(
            package=self.package, directory=self.directory, target=self.target, runner=self.runner, store=self.store
        )
        offered = {pipeline.name: pipeline for pipeline in candidates(self.book, self.choice)}
        self.decider = Decider(
            pipelines=offered,
            default=self.package.targets[self.target].default,
            evidence=self._evidence(next(iter(offered.values())).numerics),
            routing=self.choice.routing,
            pinned=self.choice.pipeline is not None,
        )
        reachable = self.decider.reachable(self.max_tokens)
        self.pipelines: dict[str, Pipeline] = {name: offered[name] for name in offered if name in reachable}
        self.book.load_all(self.pipelines.values())

    @cached_property
    def workspace_bytes(self) -> int:
        """Bytes of one workspace for ``max_tokens`` tokens."""
        return WorkspacePool(self._plans, self.max_tokens, torch.device("meta")).workspace_bytes

    def from_checkpoint(
        self,
        path: str | Path | Checkpoint,
        layer: int,
        *,
        first_expert: int = 0,
        experts: int | None = None,
        device: torch.device | str | None = None,
    ) -> MoELayer:
        """Reads one layer's experts from an NVFP4 checkpoint and makes the layer.

        Args:
            path: checkpoint folder (ModelOpt or compressed-tensors), or an opened :class:`Checkpoint`.
            layer: the layer's number.
            first_expert, experts: this rank's slice in expert parallel, needed when the spec has
                ``geometry.local_experts``; all experts by default.
            device: by default the runner's current device.

        Raises:
            CheckpointError: the checkpoint is not readable, not NVFP4, incomplete, or of another geometry.
        """
        weights = self.read(path, layer, first_expert, experts)
        return self.from_tensors(weights, device=device)

    def from_tensors(self, weights: ExpertWeights, *, device: torch.device | str | None = None) -> MoELayer:
        """Makes a layer of weights in canonical form, and the current stream's workspace if there is none yet.

        Raises:
            CheckpointError: they do not fit the package's geometry, or static scales or biases are missing.
        """
        place = torch.device(device) if device is not None else self._device()
        if place.type != self.runner.device_type:
            raise MoegenError(
                f"{place} for kernels of {self.target.value}", "device", f"use a {self.runner.device_type} device"
            )
        bank = self._pack(weights, place)
        pool = self._pool(bank.device)
        pool.slot()  # memory that does not fit is an error now, not at the first call
        engine = Engine(
            book=self.book,
            pipelines=self.pipelines,
            decider=self.decider,
            bank=bank,
            pool=pool,
            first_expert=weights.first_expert,
            held=weights.experts,
        )
        return MoELayer(self, engine)

    def calibrate(
        self,
        weights: ExpertWeights,
        x: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        *,
        headroom: float = 1.0,
    ) -> ExpertWeights:
        """Fills in static activation scales from sample tokens, for weights whose checkpoint has none.

        Args:
            weights: canonical weights, on the CPU.
            x, topk_ids, topk_weights: sample tokens as the layer would get them, on the CPU.
            headroom: factor on every magnitude that the samples show.

        Raises:
            TensorError: no sample reached any of these experts.
        """
        numerics = next(iter(self.pipelines.values())).numerics
        return with_calibrated_inputs(weights, self.op, numerics, x, topk_ids, topk_weights, headroom=headroom)

    def read(
        self, path: str | Path | Checkpoint, layer: int, first_expert: int = 0, experts: int | None = None
    ) -> ExpertWeights:
        """Reads one layer's experts as the package's geometry and formats demand; raises as :meth:`from_checkpoint`."""
        checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path)
        op, total = self.op, checkpoint.experts_total(layer)
        where, layer_experts = f"{checkpoint.files.path}, layer {layer}", self.layer_experts
        if total != layer_experts:
            raise CheckpointError(
                f"the checkpoint has {total} experts, the package was generated for {layer_experts}",
                where,
                "use this model's package; for expert parallel state geometry.local_experts in its spec",
            )
        if experts is None and op.experts < layer_experts:
            raise CheckpointError(
                f"a rank holds up to {op.experts} of the {layer_experts} experts, and which was not said",
                where,
                "pass first_expert and experts of this rank: moegen.runtime.experts_per_rank",
            )
        return checkpoint.read_experts(
            layer,
            hidden=op.hidden,
            intermediate=op.intermediate,
            first_expert=first_expert,
            experts=experts if experts is not None else op.experts,
            gated=op.gated,
            bias=op.bias,
            static_inputs=static_sides(self.pipelines.values()),
            order=GateUpOrder(self.package.layer["weights"]["gate_up_order"]),
        )

    def pack(self, weights: ExpertWeights, engine: Engine) -> Bank:
        """Packs other weights for an existing engine, on its device; raises CheckpointError as :meth:`from_tensors`."""
        if (weights.first_expert, weights.experts) != (engine.first_expert, engine.held):
            raise CheckpointError(
                f"{weights.experts} experts from {weights.first_expert}, the layer holds {engine.held} experts from"
                f" {engine.first_expert}",
                "reload",
                "pass the same experts",
            )
        return self._pack(weights, engine.device)

    @property
    def layer_experts(self) -> int:
        """Experts of the whole layer, over all ranks."""
        return self.package.layer["geometry"]["experts"]

    @property
    def op(self) -> OpSpec:
        """A gemm1 of this package: geometry, activation, formats."""
        return main_op(next(iter(self.pipelines.values())))

    @cached_property
    def _plans(self) -> dict[str, ArenaPlan]:
        return {name: plan_arena(pipeline, self.max_tokens) for name, pipeline in self.pipelines.items()}

    def _pack(self, weights: ExpertWeights, device: torch.device) -> Bank:
        op = self.op
        if weights.experts > op.experts or (weights.gate is None) == op.gated:
            raise CheckpointError(
                f"{weights.experts} experts {'without' if weights.gate is None else 'with'} a gate",
                self.package.name,
                f"the package was generated for up to {op.experts} experts {'with' if op.gated else 'without'} a gate",
            )
        last = weights.first_expert + weights.experts - 1
        if weights.first_expert < 0 or last >= self.layer_experts:
            raise CheckpointError(
                f"experts {weights.first_expert} … {last} of {self.layer_experts}",
                self.package.name,
                "slice within them",
            )
        check_weights(weights, hidden=op.hidden, intermediate=op.intermediate, where=self.package.name)
        return pack_bank(weights, self.pipelines.values(), device)

    def _pool(self, device: torch.device) -> WorkspacePool:
        with self._lock:
            if device not in self._pools:
                self._pools[device] = WorkspacePool(self._plans, self.max_tokens, device)
            return self._pools[device]

    def _device(self) -> torch.device:
        if self.runner.device_type == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(self.runner.device_type)

    def _evidence(self, numerics: Numerics) -> tuple[Evidence, ...]:
        """Frozen tables of this package and numerics class, best fit first; a pinned pipeline needs none."""
        if self.choice.pipeline is not None:
            return ()
        folders = [root / TABLES for root in self.store.roots] + [data_root("specs") / "tuned"]
        offer, layer = self.package.offer_digest(self.target), self.package.layer_digest(self.target)
        found = find_tables(folders, offer, current_environment(self.runner.facts), layer=layer)
        return tuple(
            Evidence(table=table, match=match, path=path) for table, match, path in found if table.numerics == numerics
        )
