"""Who makes the others wait. Definitions and thresholds: docs/explanation/stragglers.md.

I, the exposed peer wait a step over the step time, says whether it matters. P, the share of all waiting that fell in
collectives where a rank arrived last, says who. Why it was late is told in `causes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import Matched
from tracekit.metrics.waits import RankWaits, split, start_up
from tracekit.timeline import NONE, RankTrack

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """Waiting in collectives, by rank and step: only where arrivals differ by more than the clocks' doubt."""

    own: Float
    """(ranks, steps) exposed ns that a rank waited."""
    caused: Float
    """(ranks, steps) exposed ns that the others waited for the rank."""
    pushed: Float
    """(ranks, steps) exposed ns that a rank would not have had without waiting: compute can hide the waiting and leave
    the transfer behind it exposed."""
    last: Float
    """(ranks, steps) collectives in which the rank arrived last; of a tie each has its part."""
    late: tuple[Int64, ...]
    """By rank: in which of its `RankCollectives` it was last, or tied for it."""
    peers: NDArray[np.bool_]
    """(ranks, ranks) with which ranks each one is compared: those that do the same work."""

    def columns(self, picked: Sequence[int]) -> Arrivals:
        """Sums over the picked steps only; ``late`` stays that of all."""
        at = list(picked)
        return replace(
            self, own=self.own[:, at], caused=self.caused[:, at], pushed=self.pushed[:, at], last=self.last[:, at]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """One rank's steps: disjoint, sorted, and which column of the step matrix each one is."""

    start: Int64
    end: Int64
    column: Int64

    def only(self, columns: Sequence[int]) -> Windows:
        """Only the steps that are one of these columns."""
        kept = np.isin(self.column, columns)
        return Windows(start=self.start[kept], end=self.end[kept], column=self.column[kept])

    def column_of(self, t: Int64) -> Int64:
        """The column of the step that each instant lies in, or NONE."""
        if len(self.start) == 0:
            return np.full(len(t), NONE, np.int64)
        at = np.searchsorted(self.start, t, side="right") - 1
        clipped = np.maximum(at, 0)
        return np.where((at >= 0) & (t < self.end[clipped]), self.column[clipped], NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What the arithmetic says about the ranks of one job."""

    wait_share: float
    """I: mean exposed peer wait a step over the step time."""
    caused_share: tuple[float, ...]
    """P by rank: share of all waiting in collectives where it arrived last."""
    last_share: tuple[float, ...]
    """Plain share of collectives where it arrived last, of a tie its part; for information."""
    compute_ratio: tuple[float, ...]
    """W by rank: compute over that of the median rank among those it meets in collectives."""
    verdict: str
    """none, persistent, rotating or undecided."""
    ranks: tuple[int, ...]
    """Rows that the verdict is about."""


def arrivals(
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    waits: Sequence[RankWaits],
    matched: Sequence[Matched],
    windows: Sequence[Windows],
    steps: int,
    uncertainty_ns: int,
) -> Arrivals:
    """Sum up who waited and who was waited for, in the ``steps`` columns that each rank's windows belong to."""
    n = len(tracks)
    own, caused = np.zeros((n, steps)), np.zeros((n, steps))
    last, pushed = np.zeros((n, steps)), np.zeros((n, steps))
    kinds: list[_Seen] = []
    late: list[list[Int64]] = [[np.empty(0, np.int64)] for _ in tracks]
    for collective in matched:
        if collective.point_to_point:
            continue  # pipelines fill and drain: that one stage waits for another is the order of the work
        seen = _seen(collective, tracks, found, waits, windows, uncertainty_ns)
        if seen is None:
            continue
        kinds.append(seen)
        for row, member in enumerate(seen.members.tolist()):
            np.add.at(own[member], seen.step, seen.exposed[row])
            np.add.at(pushed[member], seen.step, seen.pushed[row])
            np.add.at(last[member], seen.step, seen.part[row])
            late[member].append(seen.index[row, seen.part[row] > 0])
    if len({tuple(kind.members.tolist()) for kind in kinds}) == 1:
        for kind in kinds:
            waited = kind.exposed.sum(axis=0)
            for row, member in enumerate(kind.members.tolist()):
                np.add.at(caused[member], kind.step, kind.part[row] * waited)
    else:
        _pass_on(kinds, caused)
    return Arrivals(
        own=own,
        caused=caused,
        pushed=pushed,
        last=last,
        late=tuple(np.concatenate(parts) for parts in late),
        peers=_peers(n, matched),
    )


def _peers(n: int, matched: Sequence[Matched]) -> NDArray[np.bool_]:
    """(ranks, ranks) which ranks do the same work, each with itself.

    They meet in collectives; where ranks also pass tensors on, those that all ranks share, such as the norm of the
    gradients, join pipeline stages that do different work.
    """
    peers = np.eye(n, dtype=np.bool_)
    pipelined = any(kind.op == "send_recv" for kind in matched)
    for kind in matched:
        if kind.meets and not kind.point_to_point and not (pipelined and len(kind.members) == n):
            peers[np.ix_(kind.members, kind.members)] = True
    return peers


def chains(n: int, matched: Sequence[Matched], peers: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(ranks, ranks) which ranks send to each other, also by way of others, each with itself: pipelines.

    Where ranks send and nothing tells to whom, any rank of another group may be behind one.
    """
    joined = np.eye(n, dtype=np.bool_)
    sends = [kind for kind in matched if kind.op == "send_recv"]
    for kind in sends:
        # Not an exchange among all ranks, in which everybody sends to everybody.
        if (kind.point_to_point or kind.communicator is not None) and len(kind.members) < n:
            joined[np.ix_(kind.members, kind.members)] = True
    if sends and np.count_nonzero(joined) == n and not any(kind.meets for kind in sends):
        return joined | ~peers
    while True:
        further = (joined.astype(np.int64) @ joined) > 0
        if (further == joined).all():
            return joined
        joined = further


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Seen:
    """The collectives of one kind inside the steps."""

    members: NDArray[np.intp]
    index: Int64
    """(members, k) which of each member's `RankCollectives` they are."""
    end: Int64
    """(k,) on the first member's clock brought to the reference; only its order counts."""
    step: Int64
    part: Float
    """(members, k) 1 for who arrived last; where the clocks' doubt leaves open who did, an equal part for each that may
    have; 0 where no arrivals can be told apart."""
    spread: Int64
    """(k,) ns from the first arrival to the last."""
    told: NDArray[np.bool_]
    """(k,) whether the arrivals can be told apart."""
    exposed: Int64
    """(members, k) ns waited without compute beside it; 0 where arrivals cannot be told apart."""
    pushed: Int64
    """(members, k) exposed ns, of waiting or of what it puts off; 0 where arrivals cannot be told apart."""


def _seen(
    kind: Matched,
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    waits: Sequence[RankWaits],
    windows: Sequence[Windows],
    uncertainty_ns: int,
) -> _Seen | None:
    waited, transfer = split(kind, found)
    columns = np.flatnonzero((transfer != NONE) & ~start_up(kind, found))
    if not kind.meets or len(columns) == 0:
        return None
    first = kind.members[0]
    index, waited = kind.index[:, columns], waited[:, columns]
    step = windows[first].column_of(tracks[first].ops.start[found[first].row[index[0]]])
    inside = step != NONE
    index, waited = index[:, inside], waited[:, inside]
    spread = waited.max(axis=0)
    doubt_ns = max(uncertainty_ns, kind.uncertainty_ns)
    told = spread > doubt_ns
    tied = told & (waited <= doubt_ns)
    members = np.asarray(kind.members)
    exposed = np.stack([waits[m].exposed_wait[index[row]] for row, m in enumerate(kind.members)])
    whole = np.stack([found[m].exposed[index[row]] for row, m in enumerate(kind.members)])
    return _Seen(
        members=members,
        index=index,
        end=kind.end[columns[inside]],
        step=step[inside],
        part=tied / np.maximum(tied.sum(axis=0), 1),
        spread=spread,
        told=told,
        exposed=np.where(told, exposed, 0),
        pushed=np.where(told, np.minimum(whole, waited), 0),
    )


def _pass_on(kinds: Sequence[_Seen], caused: Float) -> None:
    """Add up who was waited for, where ranks meet in different groups.

    A rank that arrives late in one group because it waited in another hands the blame on to whom it waited for: in a
    hybrid-sharded job all ranks of the slow rank's node are late at the all-reduce across nodes.
    """
    order = sorted((t, k, c) for k, kind in enumerate(kinds) for c, t in enumerate(kind.end.tolist()))
    groups = [tuple(kind.members.tolist()) for kind in kinds]
    # By rank: what it waited so far, by whom it waited for; and as that stood when it last met each group.
    waited_for = np.zeros((len(caused), len(caused)))
    then = {group: np.zeros((len(group), len(caused))) for group in groups}
    for _, k, column in order:
        kind, group, members = kinds[k], groups[k], kinds[k].members
        if kind.told[column]:
            part, spread = kind.part[:, column], float(kind.spread[column])
            share = np.zeros(len(caused))
            for row in np.flatnonzero(part).tolist():
                brought = waited_for[members[row]] - then[group][row]  # what it waited elsewhere
                waited = float(brought.sum())
                handed = min(waited, spread) / spread
                if waited:
                    share += brought * (part[row] * handed / waited)
                share[members[row]] += part[row] * (1.0 - handed)
            exposed = kind.exposed[:, column]
            caused[:, int(kind.step[column])] += float(exposed.sum()) * share
            waited_for[members] += np.outer(exposed, share)
        then[group] = waited_for[members]


def arithmetic(
    own: Float,
    caused: Float,
    last: Float,
    compute_ratio: Sequence[float],
    step_ns: float,
    steps: int,
    thresholds: Thresholds,
    pushed_ns: float = 0.0,
) -> Suspicion:
    """Judge from waits alone: ``own`` and ``caused`` are ns by rank over all ``steps`` of ``step_ns``.

    ``pushed_ns`` is the exposed time of all ranks that there would not be without waiting.
    """
    n = len(own)
    everything = float(caused.sum())
    share = caused / everything if everything else np.zeros(n)
    wait_share = everything / n / max(steps, 1) / step_ns if step_ns and n else 0.0
    pushed = pushed_ns / n / max(steps, 1) / step_ns if step_ns and n else 0.0
    matters = wait_share >= thresholds.wait_share or (everything > 0 and pushed >= thresholds.pushed_share)
    verdict, rows = _verdict(share, own, thresholds) if matters else ("none", ())
    return Suspicion(
        wait_share=wait_share,
        caused_share=tuple(share.tolist()),
        last_share=tuple((last / (float(last.sum()) or 1.0)).tolist()),
        compute_ratio=tuple(compute_ratio),
        verdict=verdict,
        ranks=rows,
    )


def _verdict(share: Float, own: Float, thresholds: Thresholds) -> tuple[str, tuple[int, ...]]:
    if len(share) < 2:
        return "none", ()
    worst = int(np.argmax(share))
    if share[worst] >= thresholds.persistent_share:
        # Who makes the others wait does not wait itself.
        quiet = own[worst] <= thresholds.own_wait_ratio * float(np.median(own))
        return ("persistent" if quiet else "undecided"), (worst,)
    if share[worst] < thresholds.rotating_share:
        return "rotating", tuple(np.flatnonzero(share >= thresholds.turn_share).tolist())
    return "undecided", (worst,)


def hardly_wait(own: Float, thresholds: Thresholds) -> tuple[int, ...]:
    """Rows that wait little where others wait long: ``own`` is what each waits, ns.

    Long is the median of those above the mean: where half of the ranks are late together, the median over all would
    be theirs.
    """
    long = own[own > own.mean()]
    if not len(long):
        return ()
    return tuple(np.flatnonzero(own <= thresholds.own_wait_ratio * float(np.median(long))).tolist())


def compared(peers: NDArray[np.bool_], row: int) -> NDArray[np.intp]:
    """Rows that a rank is compared with, itself among them: its peers, or all where it has none."""
    own = np.flatnonzero(peers[row])
    return own if len(own) > 1 else np.arange(len(peers))


def ratio_to_peers(values: Float, peers: NDArray[np.bool_]) -> Float:
    """Each rank's value over the median of the ranks that it meets in collectives, itself among them.

    A slow pipeline stage is slow on all ranks that meet: none of them is blamed for it.
    """
    medians = np.array([np.median(values[compared(peers, i)]) for i in range(len(values))])
    ratio: Float = np.divide(values, medians, out=np.ones(len(values)), where=medians > 0)
    return ratio
