"""Puts frozen tables where serving looks for them."""

from collections.abc import Sequence
from pathlib import Path

from moegen.core.enums import Target
from moegen.core.package import Package
from moegen.core.paths import data_root
from moegen.core.settings import read_settings
from moegen.store.tables import SUFFIX, TABLES, Table, freeze, load, table_path

SHIPPED = "tuned"
"""Folder of ``specs`` with the tables and trial packs that come with moegen."""


def write_tables(tables: Sequence[Table], folder: Path | None) -> list[Path]:
    """Writes each table and returns the paths.

    Args:
        folder: where; None: below MOEGEN_HOME, where the next load finds them.

    Raises:
        StoreError: the place cannot be written.
    """
    home = read_settings().home
    paths = [table_path(home, table) for table in tables]
    if folder is not None:
        paths = [folder / path.relative_to(home / TABLES) for path in paths]
    return [freeze(table, path) for table, path in zip(tables, paths, strict=True)]


def shipped_tables(package: Package, target: Target) -> list[Table]:
    """The tables of a layer that come with moegen, for any device of the target.

    Raises:
        TableError: a shipped table is damaged.
    """
    layer = package.layer_digest(target)
    every = [load(path) for path in sorted((data_root("specs") / SHIPPED).glob(f"*{SUFFIX}"))]
    return [table for table in every if table.layer == layer]


def shipped_winners(package: Package, target: Target) -> dict[tuple[str, ...], str]:
    """What the shipped tables of a layer need to be of use: variants in launch order → why.

    That is every winner, and what was timed at every point, so that two neighbours have a pipeline in common.
    """
    found: dict[tuple[str, ...], str] = {}
    for table in shipped_tables(package, target):
        device = table.environment.device
        for point in table.points:
            where = f"fastest at T = {point.tokens}, {point.routing} on {device}"
            found.setdefault(table.pipelines[point.winner], where)
        timed = [{candidate.pipeline for candidate in point.candidates} for point in table.points]
        for name in sorted(set.intersection(*timed)) if timed else ():
            found.setdefault(table.pipelines[name], f"timed at every point on {device}")
    return found
