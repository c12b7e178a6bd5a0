"""Which experts a rank of an expert-parallel group holds."""

from itertools import pairwise

from moegen.core.errors import MoegenError


def experts_per_rank(experts: int, ranks: int) -> tuple[range, ...]:
    """Splits ``experts`` over ``ranks`` so that sizes differ by one at most, the larger ones first.

    A package for such a group is generated with ``geometry.local_experts`` = the first range's length; ranks with one
    expert fewer leave the last one empty.

    Raises:
        MoegenError: fewer experts than ranks, so that a rank would hold none.
    """
    if not 1 <= ranks <= experts:
        raise MoegenError(f"{experts} experts over {ranks} ranks", "expert parallel", "use 1 to E ranks")
    size, larger = divmod(experts, ranks)
    starts = [rank * size + min(rank, larger) for rank in range(ranks + 1)]
    return tuple(range(start, stop) for start, stop in pairwise(starts))
