"""Puts frozen tables where serving looks for them."""

from collections.abc import Iterable, Sequence
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


def layer_tables(package: Package, target: Target, folders: Iterable[Path] = ()) -> list[tuple[Path, Table]]:
    """Tables of a layer in ``folders`` and among those that come with moegen, for any device of the target.

    Raises:
        TableError: a table is damaged.
    """
    layer = package.layer_digest(target)
    paths = [path for folder in (*folders, data_root("specs") / SHIPPED) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    every = [(path, load(path)) for path in paths]
    return [(path, table) for path, table in every if table.layer == layer]


def shipped_winners(package: Package, target: Target) -> dict[tuple[str, ...], str]:
    """What the shipped tables of a layer need to be of use: variants in launch order → why.

    That is every winner, and what was timed at every point, so that two neighbours have a pipeline in common.
    """
    found: dict[tuple[str, ...], str] = {}
    for _, table in layer_tables(package, target):
        device = table.environment.device
        for point in table.points:
            where = f"fastest at T = {point.tokens}, {point.routing} on {device}"
            found.setdefault(table.pipelines[point.winner], where)
        timed = [{candidate.pipeline for candidate in point.candidates} for point in table.points]
        for name in sorted(set.intersection(*timed)) if timed else ():
            found.setdefault(table.pipelines[name], f"timed at every point on {device}")
    return found
