"""Field cases of caches, compilers and homes: the right behaviour, and guards that would notice its loss."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from moegen.build import cuda_toolkit
from moegen.build.builder import BUILT, HIT, artifact_key, build
from moegen.build.cuda_toolkit import find_toolkit
from moegen.build.gxx import Gxx
from moegen.build.nvcc import Nvcc
from moegen.codegen.catalogs.cpu import CATALOG, ROW_TILES
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.devices import CPU_GENERIC
from moegen.core.enums import ActFormat, ActivationKind, ActScale, Epilogue, OpKind, ScaleLayout, Target
from moegen.core.errors import StoreError, ToolchainMissing
from moegen.core.ops import Activation, Numerics, OpSpec
from moegen.store import artifacts
from moegen.store.artifacts import ArtifactStore, StoreWarning
from tests import faults
from tests.build.helpers import PLAIN_C, fake_program, package, plain_package, source
from tests.faults import guards
from tests.store.helpers import FILES, as_nobody, in_child, make_key, published

ROOT = Path(__file__).parents[2]


def test_fr_33_equal_shapes_with_other_meaning_have_other_keys() -> None:
    """Scale layout, activation, its constants and its rounding are part of the variant, its source and its key."""
    base = OpSpec(
        kind=OpKind.GEMM1,
        experts=6,
        top_k=2,
        hidden=144,
        intermediate=80,
        act_format=ActFormat.NVFP4,
        row_tile=ROW_TILES[0],
        epilogue=Epilogue.COMPACT,
        activation=Activation(kind=ActivationKind.SWIGLU),
        numerics=Numerics(),
        act_scale=ActScale.STATIC,
        weight_pack="rows8",
    )
    oai = Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=7.0)
    others = [
        replace(base, scale_layout=ScaleLayout.SWIZZLE_128X4),
        replace(base, weight_scale_layout=ScaleLayout.SWIZZLE_128X4),
        replace(base, activation=Activation(kind=ActivationKind.GEGLU_TANH)),
        replace(base, activation=oai),
        replace(base, activation=replace(oai, limit=6.0)),
        replace(base, bias=True),
    ]
    keys, names = set(), set()
    for op in (base, *others):
        schedules = CATALOG.schedules(op, CPU_GENERIC, None)
        legal = next(item for item in schedules if CATALOG.verdict(op, item, CPU_GENERIC).legal)
        rendered = render(Variant(op=op, schedule=legal), CATALOG)
        names.add(rendered.source.variant)
        keys.add(artifact_key(rendered.source, Gxx()).digest)
    assert len(keys) == len(names) == len(others) + 1


def build_here(directory: Path, home: Path) -> dict[str, int]:
    """Builds the CPU target into a home; returns counts by result."""
    return build(directory, [Target.CPU], store=ArtifactStore(home), jobs=1).counts()


@guards(faults.fresh_by_mtime)
def test_fr_34_older_mtime_with_new_text_is_rebuilt(tmp_path: Path) -> None:
    directory, home = tmp_path / "package", tmp_path / "home"
    plain_package(directory, count=1, value=7)
    assert build_here(directory, home) == {BUILT: 1}
    made = plain_package(directory, count=1, value=8)
    path = directory / made.targets[Target.CPU].sources[0].path
    yesterday = time.time() - 86_400
    for old in (path, directory / "manifest.json"):
        os.utime(old, (yesterday, yesterday))
    report = build(directory, [Target.CPU], store=ArtifactStore(home), jobs=1)
    assert report.counts() == {BUILT: 1}
    artifact = ArtifactStore(home).lookup(report.variants[0].key)
    assert artifact is not None
    assert ctypes.CDLL(str(artifact.path("kernel.so"))).f0() == 8


def test_fr_34_newer_mtime_with_equal_text_is_a_hit(tmp_path: Path) -> None:
    made = plain_package(tmp_path / "package", count=1)
    build_here(tmp_path / "package", tmp_path / "home")
    tomorrow = time.time() + 86_400
    os.utime(tmp_path / "package" / made.targets[Target.CPU].sources[0].path, (tomorrow, tomorrow))
    assert build_here(tmp_path / "package", tmp_path / "home") == {HIT: 1}


def test_fr_35_eight_processes_on_an_empty_cache(tmp_path: Path) -> None:
    plain_package(tmp_path / "package", count=1)
    home = tmp_path / "home"

    def first_call() -> None:
        report = build(tmp_path / "package", [Target.CPU], store=ArtifactStore(home), jobs=1)
        artifact = ArtifactStore(home).lookup(report.variants[0].key)
        assert artifact is not None
        assert ctypes.CDLL(str(artifact.path("kernel.so"))).f0() == 7

    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                first_call()
            except BaseException:
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8


@guards(faults.lost_race_is_an_error)
def test_fr_35_enotempty_before_the_winner_is_visible(tmp_path: Path) -> None:
    plain_package(tmp_path / "package", count=1)
    store = ArtifactStore(tmp_path / "home")
    with mock.patch.object(artifacts.os, "rename", mock.Mock(side_effect=OSError(errno.ENOTEMPTY, "not empty"))):
        report = build(tmp_path / "package", [Target.CPU], store=store, jobs=1)
    artifact = store.lookup(report.variants[0].key)
    assert artifact is not None
    assert artifact.private
    assert ctypes.CDLL(str(artifact.path("kernel.so"))).f0() == 7


@guards(faults.lock_by_existence)
def test_fr_36_lock_of_a_killed_builder_does_not_hang_the_next(tmp_path: Path) -> None:
    plain_package(tmp_path / "package", count=1)
    with mock.patch("tempfile.tempdir", str(tmp_path)):

        def killed_while_holding_the_lock() -> None:
            def compile_forever(*_: object) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            with mock.patch.object(Gxx, "compile", compile_forever):
                build_here(tmp_path / "package", tmp_path / "home")

        assert in_child(killed_while_holding_the_lock) == -signal.SIGKILL
        assert list(tmp_path.glob("moegen-locks-*/build-*.lock"))
        bounded = ArtifactStore.lock
        with (
            mock.patch.object(ArtifactStore, "lock", lambda self, name, **_: bounded(self, name, timeout_s=1.0)),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error", StoreWarning)
            assert build_here(tmp_path / "package", tmp_path / "home") == {BUILT: 1}


@pytest.mark.parametrize("home", ["/nonexistent", "/proc"])
def test_fr_37_import_and_lookup_with_a_home_that_cannot_be_made(home: str) -> None:
    code = (
        "import moegen, moegen.store.artifacts as a, moegen.store.bundles as b, moegen.core.settings as s\n"
        "store = a.ArtifactStore.from_settings(s.read_settings())\n"
        "assert store.lookup('0' * 64) is None and b.read_bundle(store, '0' * 64, 'cpu') is None\n"
        "print(store.home)\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOEGEN_", "XDG_"))}
    environment = kept | {"HOME": home, "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(home)
    assert not Path(said.stdout.strip()).exists()


@guards(faults.home_made_on_construction)
def test_fr_37_opening_a_store_writes_nothing(tmp_path: Path) -> None:
    ArtifactStore(tmp_path / "home").lookup("0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_fr_37_prebuilt_artifacts_load_from_a_read_only_folder_as_another_user(tmp_path: Path) -> None:
    _, digest, _ = published(tmp_path / "pack")
    for folder, _, names in os.walk(tmp_path / "pack"):
        os.chmod(folder, 0o555)
        for name in names:
            os.chmod(Path(folder) / name, 0o444)
    for parent in tmp_path.parents:
        if parent != Path("/") and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)

    def serve() -> None:
        store = ArtifactStore(Path("/nonexistent/home"), (tmp_path / "pack",))
        found = store.lookup(digest)
        assert found is not None
        assert found.path("kernel.so").read_bytes() == FILES["kernel.so"]

    assert as_nobody(serve) == 0


def test_fr_37_unwritable_home_names_the_variable() -> None:
    def build_something() -> None:
        store = ArtifactStore(Path("/nonexistent/home"))
        with pytest.warns(StoreWarning, match="set MOEGEN_HOME"):
            assert store.publish(make_key(), FILES, {}).private
        with pytest.raises(StoreError, match="set MOEGEN_HOME"):
            store.prepare_home()

    assert as_nobody(build_something) == 0


def _only_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: str) -> None:
    fake_program(tmp_path / "nvcc" / "nvcc", f"echo 'Cuda compilation tools, release {minor}, V{minor}.107'\n")
    monkeypatch.setenv("PATH", str(tmp_path / "nvcc"), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(cuda_toolkit, "_wheel_nvcc", lambda: None)


@guards(faults.any_nvcc_will_do)
def test_fr_43_nvcc_too_old_for_the_target_is_refused_before_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _only_nvcc(tmp_path, monkeypatch, "12.3")
    with pytest.raises(ToolchainMissing, match=r"nvcc 12\.3 is too old for sm_100a, 12\.8 is needed"):
        find_toolkit("sm_100a")
    directory = tmp_path / "package"
    package(directory, {Target.SM_100A: [source(directory, Target.SM_100A, "f.cu", "", "f")]})
    report = build(directory, store=ArtifactStore(tmp_path / "home"))
    assert report.variants == []
    assert "12.8 is needed" in report.disabled[Target.SM_100A]
    assert not (tmp_path / "home").exists()


def test_fr_43_architecture_specific_suffix_is_forced() -> None:
    with pytest.raises(ToolchainMissing) as caught:
        Nvcc("sm_120").discover()
    assert caught.value.fix == "use sm_120a"


def test_fr_43_object_for_another_architecture_is_a_miss(tmp_path: Path) -> None:
    store, digest, _ = published(tmp_path / "home", arch="sm_100a")
    other = make_key(arch="sm_103a")
    assert store.lookup(digest) is not None
    assert other.digest != digest
    assert store.lookup(other.digest) is None
    assert [item.field for item in store.why_miss(other)] == ["arch"]


def test_fr_32_eight_threads_make_the_first_call(tmp_path: Path) -> None:
    directory, home = tmp_path / "package", tmp_path / "home"
    package(directory, {Target.CPU: [source(directory, Target.CPU, "f.cc", PLAIN_C.format(symbol="f", value=3), "f")]})
    barrier = threading.Barrier(8)
    counts: list[dict[str, int]] = []

    def first_call() -> None:
        barrier.wait()
        counts.append(build_here(directory, home))

    threads = [threading.Thread(target=first_call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, counts)) == sorted([str({BUILT: 1}), *[str({HIT: 1})] * 7])
