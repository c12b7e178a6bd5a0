"""Faults that tests guard against, and the proof that each guard would notice its fault.

A guard is a test under ``@guards(FAULT)``: it must pass as it is, and must fail once the fault is injected. A fault is
a context manager that breaks one thing in the product, the way it has been broken elsewhere.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

Fault = Callable[[], AbstractContextManager[Any]]


def guards(*faults: Fault) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs the test once as it is and once under each fault; the test takes ``tmp_path``, a fresh folder each time."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*, tmp_path: Path, **fixtures: Any) -> None:
            test(tmp_path=_folder(tmp_path, "sound"), **fixtures)
            for fault in faults:
                name = getattr(fault, "__name__", "fault")
                with fault():
                    noticed = _fails(test, tmp_path=_folder(tmp_path, name), **fixtures)
                assert noticed, f"{test.__name__} passes under {name}: {fault.__doc__}"

        return run

    return decorate


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def _fails(test: Callable[..., None], **fixtures: Any) -> bool:
    try:
        test(**fixtures)
    except Exception:
        return True
    except BaseException as outcome:  # pytest.fail and friends do not derive from Exception
        if type(outcome).__name__ == "Failed":
            return True
        raise
    return False


def forgotten(owner: type, field: str) -> Fault:
    """A fault under which ``owner``'s digest does not see one of its fields."""

    @contextmanager
    def fault() -> Iterator[None]:
        from moegen.core import canonical

        def blind(value: object, domain: str) -> str:
            text = canonical.plain(value)
            if isinstance(value, owner) and isinstance(text, dict):
                text.pop(field)
            return canonical.digest_bytes(canonical.canonical_json(text), domain)

        with mock.patch(f"{owner.__module__}.digest", blind):
            yield

    fault.__name__ = f"{owner.__name__}_forgets_{field}"
    fault.__doc__ = f"{field} is left out of the digest of {owner.__name__}"
    return fault


# ---- store ---------------------------------------------------------------------------------------------------------


def unchecked_reads() -> AbstractContextManager[Any]:
    """Artifacts are opened without comparing their files with the manifest."""
    return mock.patch("moegen.store.artifacts.verify_files", return_value=None)


def written_in_place() -> AbstractContextManager[Any]:
    """Entries are written under their final name, file by file."""
    from moegen.store.artifacts import ArtifactStore, entry_directory

    staged = ArtifactStore.__dict__["_stage"].__func__

    def stage(token: Path, key: Any, files: Any, meta: Any) -> int:
        final = entry_directory(token.parent.parent, key.digest)
        final.parent.mkdir(parents=True, exist_ok=True)
        token.symlink_to(final)
        final.mkdir(exist_ok=True)
        with mock.patch.object(Path, "mkdir", return_value=None):
            return staged(token, key, files, meta)

    def rename(*_: Any) -> bool:
        return True

    return mock.patch.multiple(ArtifactStore, _stage=staticmethod(stage), _rename=staticmethod(rename))


def lost_race_is_an_error() -> AbstractContextManager[Any]:
    """Losing the final rename is treated like any other failure."""
    return mock.patch("moegen.store.artifacts._LOST_RACE", frozenset())


def lock_by_existence() -> AbstractContextManager[Any]:
    """A lock is held for as long as its file exists, whoever made it."""
    import os

    def try_lock(path: Path) -> int | None:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return None

    return mock.patch("moegen.store.locks.try_lock", try_lock)


def home_made_on_construction() -> AbstractContextManager[Any]:
    """Opening a store creates its folders."""
    from moegen.store.artifacts import ArtifactStore

    made = ArtifactStore.__init__

    def init(self: Any, home: Path, packs: Any = ()) -> None:
        made(self, home, packs)
        self.prepare_home()

    return mock.patch.object(ArtifactStore, "__init__", init)


def collector_ignores_bundles() -> AbstractContextManager[Any]:
    """The collector removes artifacts that a bundle still names."""
    return mock.patch("moegen.store.upkeep._named_by_bundles", return_value=set())


# ---- database and tables -------------------------------------------------------------------------------------------


def numbered_records() -> AbstractContextManager[Any]:
    """Records are numbered by arrival instead of by content."""
    import itertools

    from moegen.store.trials import Record

    numbers = itertools.count()
    return mock.patch.object(Record, "id", property(lambda self: f"{next(numbers):064x}"))


def references_unchecked() -> AbstractContextManager[Any]:
    """Trials are taken without the records they refer to."""
    return mock.patch("moegen.store.packs.check_closed", return_value=None)


def table_digest_unchecked() -> AbstractContextManager[Any]:
    """A table is believed whatever its header says."""
    import json

    from moegen.store import tables

    def load(path: Path) -> Any:
        return tables._from_json(json.loads(path.read_bytes())["table"])

    return mock.patch("moegen.store.tables.load", load)


# ---- build ---------------------------------------------------------------------------------------------------------


def fresh_by_mtime() -> AbstractContextManager[Any]:
    """An artifact that is newer than the source serves it, whatever the source says."""
    from moegen.store.artifacts import ArtifactStore

    looked_up = ArtifactStore.lookup

    def lookup(self: Any, key: str) -> Any:
        exact = looked_up(self, key)
        if exact is not None:
            return exact
        return next((looked_up(self, path.name) for path, _ in self.entries()), None)

    return mock.patch.object(ArtifactStore, "lookup", lookup)


def any_nvcc_will_do() -> AbstractContextManager[Any]:
    """nvcc's version is not compared with what the architecture needs."""
    return mock.patch("moegen.build.cuda_toolkit._check_version", return_value=None)


def spills_pass() -> AbstractContextManager[Any]:
    """Register spills are not looked for in ptxas's report."""
    return mock.patch("moegen.build.nvcc.usage", return_value={"spill_bytes": 0})


def paths_in_objects() -> AbstractContextManager[Any]:
    """Folder names reach the object through ``__FILE__``."""
    return mock.patch("moegen.build.gxx.hide_paths", lambda job: [w for f in job.include for w in ("-I", str(f))])


# ---- checkpoints and serving ---------------------------------------------------------------------------------------


def one_alpha_for_both_halves() -> AbstractContextManager[Any]:
    """The up half is scaled with the gate's second-level scale."""
    import torch

    return mock.patch("moegen.runtime.bank._alphas", lambda sides: torch.stack([sides[0].second] * len(sides), dim=1))


def order_taken_for_granted() -> AbstractContextManager[Any]:
    """Fused matrices are split as [gate; up] whatever their order is."""
    from moegen.numerics.layouts import GateUpRows

    return mock.patch("moegen.runtime.functional.checkpoint_rows", return_value=GateUpRows())


def slices_start_at_zero() -> AbstractContextManager[Any]:
    """Every rank of expert parallel gets the scales of the first experts."""
    from moegen.runtime.checkpoint.forms import LayerShape

    return mock.patch.object(LayerShape, "cut", property(lambda self: slice(0, self.experts)))


def last_input_scale_wins() -> AbstractContextManager[Any]:
    """gate's and up's input scales share a slot."""
    from moegen.runtime.checkpoint import ExpertWeights

    return mock.patch.object(ExpertWeights, "gate_input", lambda self: self.up.input)


def keys_unaccounted() -> AbstractContextManager[Any]:
    """Missing, wrong and left-over tensors of a checkpoint are not reported."""
    return mock.patch("moegen.runtime.checkpoint.taker.Taker.finish", return_value=None)


def any_scale_form() -> AbstractContextManager[Any]:
    """A global scale is believed to be in the form that its name says."""
    from moegen.runtime.checkpoint import second_level

    def believed(taker: Any, rest: str, value: Any, *, weight: bool) -> Any:
        return value.reciprocal() if taker.dialect.divides else value

    return mock.patch.object(second_level, "_multiply_form", believed)


def exclude_lists_ignored() -> AbstractContextManager[Any]:
    """Fused experts do not ask the checkpoint's exclude list."""
    from moegen.runtime.checkpoint import QuantConfig

    return mock.patch.object(QuantConfig, "exclusion", return_value=None)


def reload_makes_new_storage() -> AbstractContextManager[Any]:
    """A second load into a live layer replaces its tensors."""
    from moegen.runtime.bank import Bank

    def reload(self: Any, other: Any) -> None:
        self._tensors, self.report = other._tensors, other.report

    return mock.patch.object(Bank, "reload", reload)


def buffers_without_lifetimes() -> AbstractContextManager[Any]:
    """Workspace buffers may share bytes though a launch needs both."""
    from moegen.runtime.workspace import Region

    return mock.patch.object(Region, "overlaps", return_value=False)


def dispatch_has_buckets_of_its_own() -> AbstractContextManager[Any]:
    """Dispatch rounds T down to a power of two, tuning did not."""
    from moegen.runtime.decision import Bracket

    def power_of_two(tokens: int, points: Any) -> Bracket:
        bucket = 1 << (tokens.bit_length() - 1)
        return Bracket(low=bucket, high=bucket)

    return mock.patch("moegen.runtime.decision.bracket", power_of_two)
