"""Groups of asynchronous operations that a thread commits and waits for, per lane of a warp."""

from typing import Any

import numpy as np

from moegen.ptx.dtypes import LANES, Mask


class Batch:
    """Operations of one commit.

    Attributes:
        mask: lanes that committed it.
        reads: operations whose source has not been read yet.
        writes: operations that are not complete yet.
        serial: race detector's number of the last operation.
    """

    __slots__ = ("mask", "reads", "serial", "writes")

    def __init__(self) -> None:
        self.mask: Mask | None = None
        self.reads = 0
        self.writes = 0
        self.serial = 0


class Groups:
    """Batches of one kind (cp.async, bulk, wgmma) of one warp.

    Attributes:
        open: batch that collects operations until the next commit.
        committed: in order of commit; fully completed ones are dropped from the front.
    """

    def __init__(self) -> None:
        self.open = Batch()
        self.committed: list[Batch] = []

    def commit(self, mask: Mask) -> None:
        """Closes the open batch for the lanes in ``mask``."""
        self.open.mask = mask
        self.committed.append(self.open)
        self.open = Batch()

    def waited(self, mask: Mask, allowed: int) -> list[Batch]:
        """Batches that a wait for all but the latest ``allowed`` of any lane in ``mask`` covers."""
        newer = np.zeros(LANES, np.int64)
        covered: list[Batch] = []
        for batch in reversed(self.committed):
            assert batch.mask is not None
            mine = batch.mask & mask
            if (mine & (newer >= allowed)).any():
                covered.append(batch)
            newer += batch.mask
        return covered

    def trim(self) -> None:
        """Forgets completed batches that no wait can name as pending any more."""
        while len(self.committed) > 16 and self.committed[0].writes == 0 and self.committed[0].reads == 0:
            self.committed.pop(0)

    @property
    def reading(self) -> bool:
        """Whether any operation, committed or not, still has to read its source."""
        return self.open.reads > 0 or any(batch.reads for batch in self.committed)


def finished(batches: list[Batch], reads_only: bool) -> bool:
    """Whether all batches are complete, or have read their sources."""
    return not any(batch.reads if reads_only else batch.writes for batch in batches)


def of(scratch: dict[str, Any], kind: str) -> Groups:
    """The groups of a kind of a warp, kept in its scratch."""
    groups = scratch.get(kind)
    if groups is None:
        groups = scratch[kind] = Groups()
    return groups
