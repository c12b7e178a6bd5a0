"""Finds templates and specs, in a checkout and in an installed wheel alike."""

from pathlib import Path

from moegen.core.errors import MoegenError

_PACKAGE = Path(__file__).resolve().parent.parent


def data_root(name: str) -> Path:
    """Folder ``templates`` or ``specs``: inside the wheel (``moegen/_data``), else beside the package in a checkout.

    Raises:
        MoegenError: neither exists.
    """
    for root in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if root.is_dir():
            return root
    raise MoegenError(f"no {name} folder", str(_PACKAGE), "reinstall moegen")
