"""The builder: what is missing is compiled once, published, and bundled; everything else is said before it starts."""

import ctypes
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from moegen.build import builder
from moegen.build.builder import BUILT, HIT, Progress, artifact_key, build
from moegen.build.gxx import Gxx
from moegen.build.toolchain import CompileJob, Done, Status
from moegen.core.cpu import host_cpu_arch
from moegen.core.enums import Target
from moegen.core.errors import BuildRefused, MoegenError, StaleGenerated, StoreError, StoreFull, ToolchainMissing
from moegen.core.package import Package
from moegen.core.settings import Settings
from moegen.store.artifacts import ArtifactStore
from moegen.store.bundles import read_bundle
from moegen.store.keys import Identity
from tests.build.helpers import PLAIN_C, fake_program, package, plain_package, source
from tests.store.helpers import in_child


class Counting(Gxx):
    """g++ that writes one line to a file for each source it really compiles."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def compile(self, jobs: Sequence[CompileJob], work: Path, parallel: int, done: Done) -> None:
        with self._log.open("a") as file:
            file.writelines(f"{job.name}\n" for job in jobs)
        super().compile(jobs, work, parallel, done)

    @property
    def compiled(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0


class Missing(Gxx):
    """A compiler that is not there."""

    def discover(self) -> str:
        raise ToolchainMissing("g++ not found on PATH", "", "apt-get install g++")


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "home")


@pytest.fixture
def gxx(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "compiled.log")


def run(directory: Path, store: ArtifactStore, gxx: Gxx, **facts: object) -> builder.BuildReport:
    return build(directory, store=store, toolchains={Target.CPU: {".cc": gxx}}, jobs=2, **facts)  # type: ignore[arg-type]


def test_cold_then_warm(tmp_path: Path, store: ArtifactStore, gxx: Counting) -> None:
    made = plain_package(tmp_path / "package", count=3)
    events: list[Progress] = []
    cold = run(tmp_path / "package", store, gxx, progress=events.append)
    assert cold.counts() == {BUILT: 3}
    assert [(event.done, event.total) for event in events] == [(1, 3), (2, 3), (3, 3)]
    assert cold.archs == {Target.CPU: gxx.arch}
    bundle = read_bundle(store, made.digest, gxx.arch)
    assert bundle is not None
    assert bundle.artifacts == {report.variant: report.key for report in cold.variants}
    for index, entry in enumerate(made.targets[Target.CPU].sources):
        artifact = store.lookup(bundle.artifacts[entry.variant])
        assert artifact is not None
        assert getattr(ctypes.CDLL(str(artifact.path("kernel.so"))), entry.symbol)() == 7 + index
        assert artifact.path("source.cc").read_bytes() == (tmp_path / "package" / entry.path).read_bytes()
        assert artifact.manifest.meta["variant"] == entry.variant
    warm = run(tmp_path / "package", ArtifactStore(store.home), gxx)
    assert warm.counts() == {HIT: 3}
    assert gxx.compiled == 3
    assert not list(store.home.glob("staging/*"))


def test_order_of_the_report_is_the_manifests(tmp_path: Path, store: ArtifactStore, gxx: Counting) -> None:
    made = plain_package(tmp_path / "package", count=3)
    report = run(tmp_path / "package", store, gxx)
    assert [item.variant for item in report.variants] == [item.variant for item in made.targets[Target.CPU].sources]


def test_failure_is_reported_with_its_log_and_the_rest_is_built(
    tmp_path: Path, store: ArtifactStore, gxx: Counting
) -> None:
    directory = tmp_path / "package"
    entries = [
        source(directory, Target.CPU, "good.cc", PLAIN_C.format(symbol="good", value=1), "good"),
        source(directory, Target.CPU, "bad.cc", "int f( {", "bad"),
    ]
    made = package(directory, {Target.CPU: entries})
    report = run(directory, store, gxx)
    assert report.counts() == {BUILT: 1, Status.COMPILE_ERROR.value: 1}
    assert [item.variant for item in report.failed] == ["variant-bad"]
    assert "error: expected" in report.failed[0].log
    bundle = read_bundle(store, made.digest, gxx.arch)
    assert bundle is not None
    assert set(bundle.artifacts) == {"variant-good"}


def test_equal_sources_are_compiled_once(tmp_path: Path, store: ArtifactStore, gxx: Counting) -> None:
    directory = tmp_path / "package"
    one = source(directory, Target.CPU, "one.cc", PLAIN_C.format(symbol="f", value=1), "f")
    package(directory, {Target.CPU: [one, replace(one, variant="twin")]})
    report = run(directory, store, gxx)
    assert report.counts() == {BUILT: 2}
    assert len({item.key for item in report.variants}) == 1
    assert gxx.compiled == 1


def test_packages_share_artifacts(tmp_path: Path, store: ArtifactStore, gxx: Counting) -> None:
    plain_package(tmp_path / "a", count=2)
    plain_package(tmp_path / "b" / "deeper", count=3)
    run(tmp_path / "a", store, gxx)
    assert run(tmp_path / "b" / "deeper", store, gxx).counts() == {HIT: 2, BUILT: 1}


def test_no_build_refuses_before_anything_is_written(tmp_path: Path, store: ArtifactStore, gxx: Counting) -> None:
    plain_package(tmp_path / "package")
    settings = Settings(home=store.home, no_build=True)
    with pytest.raises(BuildRefused, match="2 of 2 variants have no artifact") as caught:
        run(tmp_path / "package", store, gxx, settings=settings)
    assert "moegen build" in str(caught.value)
    assert not store.home.exists()
    run(tmp_path / "package", store, gxx)
    assert run(tmp_path / "package", store, gxx, settings=settings).counts() == {HIT: 2}


def test_missing_compiler_disables_its_target_with_one_line(tmp_path: Path, store: ArtifactStore) -> None:
    plain_package(tmp_path / "package")
    report = run(tmp_path / "package", store, Missing())
    assert report.variants == []
    assert report.disabled == {Target.CPU: "g++ not found on PATH To fix: apt-get install g++"}
    assert not store.home.exists()


def _lengthen(path: Path) -> None:
    path.write_text(path.read_text() + "\n")


@pytest.mark.parametrize(("change", "what"), [(_lengthen, "changed after"), (Path.unlink, "missing")])
def test_changed_source_is_refused(
    change: Callable[[Path], object], what: str, tmp_path: Path, store: ArtifactStore, gxx: Counting
) -> None:
    made = plain_package(tmp_path / "package")
    change(tmp_path / "package" / made.targets[Target.CPU].sources[0].path)
    with pytest.raises(StaleGenerated, match=what) as caught:
        run(tmp_path / "package", store, gxx)
    assert "moegen generate" in str(caught.value)
    assert gxx.compiled == 0


def _with_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A templates folder of our own with one header, and a package that includes it."""
    templates = tmp_path / "templates"
    (templates / "cpu" / "device").mkdir(parents=True)
    header = templates / "cpu" / "device" / "seven.h"
    header.write_text("inline int seven() { return 7; }\n")
    monkeypatch.setattr("tests.build.helpers.TEMPLATES", templates)
    monkeypatch.setattr(builder, "data_root", lambda name: tmp_path / name)
    _library_package(tmp_path / "package")
    return tmp_path / "package", header


def _library_package(directory: Path) -> Package:
    text = (
        '#include "cpu/device/seven.h"\nextern "C" __attribute__((visibility("default"))) int f() { return seven(); }\n'
    )
    return package(directory, {Target.CPU: [source(directory, Target.CPU, "f.cc", text, "f")]})


def test_changed_device_library_is_refused_then_rebuilt(
    tmp_path: Path, store: ArtifactStore, gxx: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, header = _with_library(tmp_path, monkeypatch)
    first = run(directory, store, gxx).variants[0].key
    header.write_text("inline int seven() { return 8; }\n")
    with pytest.raises(StaleGenerated, match="device library changed"):
        run(directory, ArtifactStore(tmp_path / "other"), gxx)
    _library_package(directory)
    report = run(directory, store, gxx)
    assert report.counts() == {BUILT: 1}
    assert report.variants[0].key != first
    artifact = store.lookup(report.variants[0].key)
    assert artifact is not None
    assert ctypes.CDLL(str(artifact.path("kernel.so"))).f() == 8


def test_key_sees_the_toolchain_and_not_the_place(tmp_path: Path) -> None:
    made = plain_package(tmp_path / "a", count=1)
    moved = plain_package(tmp_path / "b c" / "d", count=1)
    assert made.digest == moved.digest
    entry = made.targets[Target.CPU].sources[0]

    class Newer(Gxx):
        def identity(self) -> Identity:
            return (*super().identity()[1:], ("g++", "99.0"))

    keys = {artifact_key(entry, toolchain).digest for toolchain in (Gxx("x86-64-v3"), Gxx("x86-64-v2"), Newer())}
    assert len(keys) == 3


def test_machine_below_the_baseline_is_told(
    tmp_path: Path, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moegen.build import gxx as module

    monkeypatch.setattr(module, "host_cpu_arch", lambda: host_cpu_arch("x86_64", "flags : ssse3"))
    plain_package(tmp_path / "package", count=1)
    report = run(tmp_path / "package", store, Gxx())
    assert report.archs == {Target.CPU: "x86-64-v2"}
    assert len(report.notices) == 1
    assert "avx2" in report.notices[0]
    assert run(tmp_path / "package", store, Gxx("x86-64-v2")).notices == []


def test_unknown_target_and_missing_manifest(tmp_path: Path, store: ArtifactStore) -> None:
    plain_package(tmp_path / "package")
    with pytest.raises(MoegenError, match="no target sm_90a"):
        build(tmp_path / "package", [Target.SM_90A], store=store)
    with pytest.raises(StoreError, match="moegen generate"):
        build(tmp_path / "nowhere", store=store)
    assert not store.home.exists()


def test_source_without_compiler_disables_the_target(tmp_path: Path, store: ArtifactStore) -> None:
    directory = tmp_path / "package"
    package(directory, {Target.CPU: [source(directory, Target.CPU, "f.rs", "", "f")]})
    report = build(directory, store=store)
    assert "no compiler for .rs" in report.disabled[Target.CPU]


def test_full_disk_while_building(tmp_path: Path, store: ArtifactStore, gxx: Counting) -> None:
    plain_package(tmp_path / "package")
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    with mock.patch("moegen.store.artifacts.copy_synced", full), pytest.raises(StoreFull):
        run(tmp_path / "package", store, gxx)
    assert not list(store.home.glob("staging/*"))
    assert not list(store.home.glob("bundles/**/*.json"))
    assert run(tmp_path / "package", store, gxx).counts() == {BUILT: 2}


def test_read_only_pack_serves_without_a_compiler_run(tmp_path: Path, store: ArtifactStore, gxx: Counting) -> None:
    made = plain_package(tmp_path / "package")
    run(tmp_path / "package", store, gxx)
    shutil.copytree(store.home, tmp_path / "pack")
    serving = ArtifactStore(tmp_path / "absent", (tmp_path / "pack",))
    report = run(tmp_path / "package", serving, gxx, settings=Settings(home=serving.home, no_build=True))
    assert report.counts() == {HIT: 2}
    assert read_bundle(serving, made.digest, gxx.arch) is not None
    assert not serving.home.exists(), "a complete pack needs no home"


PROCESSES = 16


def test_sixteen_processes_start_cold(tmp_path: Path) -> None:
    """All finish with every variant; the lock lets one of them compile."""
    plain_package(tmp_path / "package", count=2)
    home = tmp_path / "home"
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            try:
                gxx = Counting(tmp_path / f"{number}.log")
                report = run(tmp_path / "package", ArtifactStore(home), gxx)
                good = all(ArtifactStore(home).lookup(item.key) for item in report.variants) and not report.failed
                os._exit(0 if good else 1)
            except BaseException:
                os._exit(2)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * PROCESSES
    compiled = [len(path.read_text().splitlines()) for path in tmp_path.glob("*.log")]
    assert sum(compiled) == 2, "one process compiled both, fifteen waited for it"


def test_cold_start_without_locks_still_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody compiles; losers of the rename keep their own build."""
    plain_package(tmp_path / "package", count=1)
    home = tmp_path / "home"
    monkeypatch.setattr("moegen.store.locks.fcntl.flock", mock.Mock(side_effect=OSError(95, "Operation not supported")))
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            store = ArtifactStore(home)
            report = run(tmp_path / "package", store, Counting(tmp_path / f"{number}.log"))
            os._exit(0 if store.lookup(report.variants[0].key) else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert len(list(home.glob("artifacts/v1/*/*"))) == 1


def test_interrupt_ends_compilers_and_leaves_a_resumable_state(tmp_path: Path) -> None:
    plain_package(tmp_path / "package", count=3)
    home, mark = tmp_path / "home", f"moegen-test-{os.getpid()}-{time.monotonic_ns()}"
    started = tmp_path / "started"
    slow = fake_program(
        tmp_path / "bin" / "g++",
        f"""\
        if [ "$1" = --version ]; then exec /usr/bin/env -i PATH=/usr/bin:/bin g++ --version; fi
        touch {started}
        exec sh -c 'sleep 60; : {mark}'
        """,
    )

    def interrupted() -> None:
        with mock.patch.dict(os.environ, {"PATH": f"{slow.parent}{os.pathsep}{os.environ['PATH']}"}):
            run(tmp_path / "package", ArtifactStore(home), Gxx())

    child = os.fork()
    if child == 0:
        try:
            interrupted()
        except KeyboardInterrupt:
            os._exit(130)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    while mark in _command_lines() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mark not in _command_lines(), "a compiler outlived its build"
    assert run(tmp_path / "package", ArtifactStore(home), Gxx()).counts() == {BUILT: 3}


def _command_lines() -> str:
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            texts.append(path.read_text(errors="replace"))
    return "\n".join(texts)


def test_builder_killed_in_the_middle_does_not_block_the_next(tmp_path: Path) -> None:
    plain_package(tmp_path / "package", count=2)
    home = tmp_path / "home"

    def die() -> None:
        def kill(*_: object) -> None:
            os.kill(os.getpid(), 9)

        with mock.patch("moegen.store.artifacts.describe", kill):
            run(tmp_path / "package", ArtifactStore(home), Gxx())

    assert in_child(die) == -9
    begin = time.monotonic()
    report = run(tmp_path / "package", ArtifactStore(home), Gxx())
    assert report.counts() == {BUILT: 2}
    assert time.monotonic() - begin < 60.0
