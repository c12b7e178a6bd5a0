"""Instructions in which the lanes of a warp exchange values: elect, shfl, vote, match, redux, bar.warp.sync."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.dtypes import ALL, LANE_IDS, LANES, Mask
from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.isa_packed import nan_min_max
from moegen.ptx.kernel import BLOCK
from moegen.ptx.masks import first_lane
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.uniform import KNOWN, TABLES, TRUTH, same

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_WEIGHTS = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
_FULL = 0xFFFFFFFF
_FULL_BYTES = b"\xff" * (4 * LANES)


def bits_of(mask: Mask) -> int:
    """Mask as an integer, lane 0 in bit 0."""
    return int(np.packbits(mask, bitorder="little").view(np.uint32)[0])


def mask_of(bits: int) -> Mask:
    """Integer to mask."""
    return (np.uint32(bits) & _WEIGHTS) != 0


def gathered(w: "Warp", m: Mask, members: Any) -> int | None:
    """Waits until all live lanes that the member mask names have arrived; BLOCK until then."""
    if m is ALL and members.tobytes() == _FULL_BYTES:
        return None
    bits = int(members[first_lane(m)])
    active = _FULL if m is ALL else bits_of(m)
    if active & ~bits:
        w.cta.machine.fault(
            w, Check.CONVERGENCE, f"lanes {active & ~bits:#x} execute a .sync that names {bits:#x} only"
        )
    missing = bits & ~active
    if not missing:
        return None
    live = bits_of(w.live)
    if missing & live:
        if not w.groups:
            w.cta.machine.fault(w, Check.CONVERGENCE, f"lanes {missing & live:#x} cannot reach this .sync")
        w.wait = lambda: False
        return BLOCK
    # Lanes that have exited count as arrived, as the hardware does.
    return None


@instruction("elect.sync")
def _elect(e: Emit) -> Lowered:
    lane_dst, pred_dst = e.dst_pair("b32", "pred")
    members = e.src("b32")
    if pred_dst is None:
        raise e.fail("elect.sync gives lane|predicate")
    one_hot, numbers = np.eye(LANES, dtype=np.bool_), np.repeat(LANE_IDS, LANES).reshape(LANES, LANES)

    def run(w: "Warp", m: Mask) -> int | None:
        if gathered(w, m, w.R[members]) is not None:
            return BLOCK
        leader = first_lane(m)
        w.set(lane_dst, numbers[leader], m)
        w.set(pred_dst, one_hot[leader], m)
        return None

    return e.effect(run)


def shuffle_source(kind: str, b: Any, c: Any) -> tuple[Any, Any]:
    """Source lane and whether it is in range, per lane, by the segment rules of shfl."""
    lane = np.arange(LANES, dtype=np.int64)
    b, c = b.astype(np.int64) & 31, c.astype(np.int64)
    clamp, segment = c & 31, (c >> 8) & 31
    top = (lane & segment) | (clamp & ~segment)
    bottom = lane & segment
    if kind == "up":
        source = lane - b
        ok = source >= top
    elif kind == "down":
        source = lane + b
        ok = source <= top
    elif kind == "bfly":
        source = lane ^ b
        ok = source <= top
    else:
        source = bottom | (b & ~segment)
        ok = source <= top
    return np.where(ok, source, lane), ok


@instruction("shfl.sync.{idx,up,down,bfly}.b32")
def _shfl(e: Emit) -> Lowered:
    dst, in_range = e.dst_pair("b32", "pred")
    a, b, c, members = e.src("b32"), e.src("b32"), e.src("b32"), e.src("b32")
    kind = e.mods[2]
    broadcast = kind == "idx"
    constants = {index for index in (b, c) if index >= e.slots.base}
    fixed: list[Any] = []

    def run(w: "Warp", m: Mask) -> int | None:
        R = w.R
        if gathered(w, m, R[members]) is not None:
            return BLOCK
        if len(constants) == 2 or b == c:
            if not fixed:
                fixed.extend(shuffle_source(kind, R[b], R[c]))
            source, ok = fixed
        else:
            source, ok = shuffle_source(kind, R[b], R[c])
        value = R[a]
        if id(value) not in KNOWN:
            value = same(value[source]) if broadcast else value[source]
        w.set(dst, value, m)
        if in_range is not None:
            w.set(in_range, ok, m)
        return None

    return e.effect(run)


@instruction("vote.sync.{all,any,uni}.pred", "vote.sync.ballot.b32")
def _vote(e: Emit) -> Lowered:
    kind = e.mods[2]
    dst = e.dst("b32" if kind == "ballot" else "pred")
    slot, negated = e.pred()
    members = e.src("b32")

    def run(w: "Warp", m: Mask) -> int | None:
        if gathered(w, m, w.R[members]) is not None:
            return BLOCK
        value = ~w.R[slot] if negated else w.R[slot]
        yes = value & m
        if kind == "ballot":
            w.set(dst, TABLES["u4"][bits_of(yes)], m)
            return None
        every, some = bool((value | ~m).all()), bool(yes.any())
        result = {"all": every, "any": some, "uni": every or not some}[kind]
        w.set(dst, TRUTH[result], m)
        return None

    return e.effect(run)


@instruction("match.{any,all}.sync.{b32,b64}")
def _match(e: Emit) -> Lowered:
    dst, all_same = e.dst_pair("b32", "pred")
    a, members = e.src(e.type()), e.src("b32")
    every = e.mods[1] == "all"
    if all_same is not None and not every:
        raise e.fail("match.any gives no predicate")

    def run(w: "Warp", m: Mask) -> int | None:
        if gathered(w, m, w.R[members]) is not None:
            return BLOCK
        value = w.R[a]
        if every:
            same = bool((value[m] == value[first_lane(m)]).all())
            w.set(dst, np.full(LANES, bits_of(m) if same else 0, np.uint32), m)
            if all_same is not None:
                w.set(all_same, np.full(LANES, same), m)
            return None
        equal = (value[:, None] == value[None, :]) & m[None, :]
        w.set(dst, (equal * _WEIGHTS).sum(axis=1, dtype=np.uint32), m)
        return None

    return e.effect(run)


@instruction(
    "redux.sync.{add,min,max}.{u32,s32}", "redux.sync.{and,or,xor}.b32", "redux.sync.{min,max}{,.abs}{,.NaN}.f32"
)
def _redux(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, members = e.dst(kind), e.src(kind), e.src("b32")
    name = e.mods[2]
    reduce = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[name].reduce
    absolute, nan = e.has("abs"), e.has("NaN")

    def run(w: "Warp", m: Mask) -> int | None:
        if gathered(w, m, w.R[members]) is not None:
            return BLOCK
        values = w.R[a][m]
        if kind.kind == "f":
            result = nan_min_max(values, name, absolute, nan)
        else:
            result = np.array(reduce(values.view(kind.view)), kind.view).view(np.uint32)
        w.set(dst, np.full(LANES, result, np.uint32), m)
        return None

    return e.effect(run)


@instruction("bar.warp.sync")
def _warp_sync(e: Emit) -> Lowered:
    members = e.src("b32")

    def run(w: "Warp", m: Mask) -> int | None:
        if gathered(w, m, w.R[members]) is not None:
            return BLOCK
        races = w.cta.machine.races
        if races is not None:
            races.lanes_synchronise(w)
        return None

    return e.effect(run)
