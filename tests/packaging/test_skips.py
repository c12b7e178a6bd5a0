"""The rule that fails unlisted skips must itself fail when broken: it is run on a suite that skips."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        ("@pytest.mark.skip(reason='later')\ndef test_it(): pass", False),
        ("@pytest.mark.xfail\ndef test_it(): assert False", False),
        ("def test_it(): pytest.skip('no')", False),
        ("pytest.skip('no', allow_module_level=True)", False),
        ("@pytest.mark.foreign_checkout\ndef test_it(): pytest.skip('no checkout')", True),
        ("def test_it(): pass", True),
    ],
)
def test_unlisted_skips_fail(pytester: pytest.Pytester, body: str, passes: bool) -> None:
    pytester.makeconftest((CONFTEST / "conftest.py").read_text())
    (pytester.path / "skips.py").write_text((CONFTEST / "skips.py").read_text())
    pytester.makeini("[pytest]\nmarkers = foreign_checkout: x\n gpu: x\n")
    pytester.makepyfile("import pytest\n" + body)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert (result.ret == 0) is passes
