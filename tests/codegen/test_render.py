"""Rendered text is checked, named by content, and keyed by everything it includes."""

import hashlib
from pathlib import Path

import pytest
from codegen.specs import quickstart

from moegen.codegen import plan
from moegen.codegen.catalog import Catalog
from moegen.codegen.catalogs.cpu import CpuCatalog
from moegen.codegen.closure import closure, closure_digest
from moegen.codegen.context import GENERATOR
from moegen.codegen.registry import catalog
from moegen.codegen.render import Rendered, render
from moegen.codegen.schedule import Schedule
from moegen.codegen.variant import Variant
from moegen.core.enums import OpKind, Target
from moegen.core.errors import RenderError
from moegen.core.ops import OpSpec
from moegen.core.paths import data_root

CPU = catalog(Target.CPU)
HEADER = "// {{ variant }}\n// {{ generator }}\n"


@pytest.fixture(scope="module")
def rendered() -> list[Rendered]:
    """Every kernel of the quickstart on every target."""
    spec = quickstart()
    plans = [plan(spec, target) for target in spec.targets]
    return [render(variant, catalog(item.target)) for item in plans for variant in item.variants]


def test_every_kernel_says_what_it_is_and_nothing_of_where_or_when(rendered: list[Rendered]) -> None:
    assert len(rendered) > 30
    for item in rendered:
        head = "\n".join(item.text.splitlines()[:6])
        assert item.source.variant in head
        assert GENERATOR in head
        assert str(Path(__file__).parents[2]) not in item.text
        assert str(Path.home()) not in item.text


def test_names_are_digests_of_content(rendered: list[Rendered]) -> None:
    for item in rendered:
        content = hashlib.sha256(item.text.encode()).hexdigest()
        target, _, name = item.source.path.partition("/")
        assert item.source.digest == content
        assert name.rpartition(".")[0] == f"{item.source.symbol}_{content[:16]}"
        assert target in item.source.variant
        assert item.source.closure == closure_digest(item.files)


def test_distinct_variants_have_distinct_files(rendered: list[Rendered]) -> None:
    assert (
        len({item.source.path for item in rendered}) == len({item.source.variant for item in rendered}) == len(rendered)
    )


def test_kernels_hold_one_epilogue_and_no_template_syntax(rendered: list[Rendered]) -> None:
    for item in rendered:
        assert "{%" not in item.text
        assert "{{ " not in item.text


def test_closures_name_files_below_the_templates(rendered: list[Rendered]) -> None:
    root = data_root("templates")
    for item in rendered:
        assert item.files, item.source.path
        for name, content in item.files.items():
            assert hashlib.sha256((root / name).read_bytes()).hexdigest() == content


@pytest.fixture
def variant() -> Variant:
    spec = quickstart()
    return next(v for v in plan(spec, Target.CPU).variants if v.op.kind is OpKind.COMBINE)


class OneTemplate(CpuCatalog):
    """The CPU catalog with a template of the test's own."""

    def template(self, op: OpSpec, schedule: Schedule) -> str:
        return "cpu/kernel.cc.j2"

    def includes(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        return ()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cpu" / "device").mkdir(parents=True)
    return tmp_path


def write(folder: Path, text: str) -> Catalog:
    (folder / "cpu" / "kernel.cc.j2").write_text(text)
    return OneTemplate()


def test_text_is_tidied(folder: Path, variant: Variant) -> None:
    made = render(variant, write(folder, HEADER + "\n\n\n\n\nint a;   \n\n\n"), folder)
    assert made.text.endswith("do not edit.\n\n\nint a;\n") or made.text.endswith(f"{GENERATOR}\n\n\nint a;\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("void f() {", "line 3: '{' is not closed"),
        ("void f() }", "line 3: '}' closes nothing"),
        ("int a[3);", "line 3: '\\)' closes nothing"),
        ("{{ absent }}", "'absent' is undefined"),
        ("{{ op.absent }}", "has no attribute 'absent'"),
        ("{% if %}", "templates/cpu/kernel.cc.j2:3"),
        ('#include "cpu/device/absent.h"', "is not found"),
        ('#include "../../outside.h"', "is not found|leaves the templates folder"),
    ],
)
def test_bad_templates_are_refused(folder: Path, variant: Variant, body: str, message: str) -> None:
    (folder.parent / "outside.h").write_text("")
    with pytest.raises(RenderError, match=message):
        render(variant, write(folder, HEADER + body + "\n"), folder)


def test_brackets_in_comments_and_literals_do_not_count(folder: Path, variant: Variant) -> None:
    body = "// {\n/* ( \n [ */ const char* s = \"}\\\"{\"; char c = '{'; int grouped = 1'000;\n"
    assert "grouped" in render(variant, write(folder, HEADER + body), folder).text


def test_a_header_without_the_variant_is_refused(folder: Path, variant: Variant) -> None:
    with pytest.raises(RenderError, match="does not name the variant"):
        render(variant, write(folder, "// {{ generator }}\nint a;\n"), folder)


def test_a_missing_template_is_a_render_error(folder: Path, variant: Variant) -> None:
    with pytest.raises(RenderError, match="no template"):
        render(variant, OneTemplate(), folder)


def test_any_included_byte_changes_the_closure_and_not_the_name(folder: Path, variant: Variant) -> None:
    device = folder / "cpu" / "device"
    (device / "a.h").write_text('#include "b.h"\n')
    (device / "b.h").write_text('#pragma once\n#include "cpu/device/a.h"\n')
    made = write(folder, HEADER + '#include "cpu/device/a.h"\n')
    before = render(variant, made, folder)
    assert list(before.files) == ["cpu/device/a.h", "cpu/device/b.h"]
    (device / "b.h").write_text("#pragma once\n\n")
    after = render(variant, made, folder)
    assert after.source.digest == before.source.digest
    assert after.source.closure != before.source.closure


def test_a_closure_depends_on_names_and_contents_not_on_place(tmp_path: Path) -> None:
    digests = set()
    for place in ("one", "two"):
        device = tmp_path / place / "cpu" / "device"
        device.mkdir(parents=True)
        (device / "a.h").write_text("int a;\n")
        files = closure('#include "cpu/device/a.h"\n', "cc", (tmp_path / place).resolve())
        digests.add(closure_digest(files))
    assert len(digests) == 1


def test_python_closures_follow_imports_of_own_modules(tmp_path: Path) -> None:
    device = tmp_path / "sm_100a" / "device"
    device.mkdir(parents=True)
    (device / "__init__.py").write_text("")
    (device / "rows.py").write_text("import sm_100a.device.bits\nimport math\n")
    (device / "bits.py").write_text("")
    files = closure("from sm_100a.device import rows\nimport torch\n", "py", tmp_path.resolve())
    assert list(files) == ["sm_100a/device/__init__.py", "sm_100a/device/bits.py", "sm_100a/device/rows.py"]
