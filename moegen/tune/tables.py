"""Puts frozen tables where serving looks for them."""

from collections.abc import Sequence
from pathlib import Path

from moegen.core.settings import read_settings
from moegen.store.tables import TABLES, Table, freeze, table_path


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
