"""Which operations of a rank wait for which others across streams: recorded waits, and who they wait for.

A capture records that a stream was made to wait for an event, not which operation the event stands for. That is
inferred, in this order:

1. what starts when an operation on another stream ends, and neither its launch nor its own stream held it back that
   long, waited for that operation;
2. a wait of the same kind (stream, the operation held, the one launched before) is for the operation at the same place
   among those launched: a dependency that binds in one layer is known in all;
3. an event recorded right before the wait stands for the operation launched last;
4. else waits take the operations of one communication stream in turn.

What ended after the start of what would have waited for it is never taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.replay.work import CONTEXT_SYNC, STREAM_SYNC, RankWork, labels
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

LOOK_BACK = 8
"""Operations that ended last before a moment, among which the one waited for is looked for."""
SAME_COUNT = 0.2
"""Waits and operations whose numbers differ by less than this share are taken for pairs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Operations or returns of calls that wait for the end of an operation; columns of one length."""

    after: Int64
    """Index of what waits: an operation, or a call."""
    before: Int64
    """Index of the operation waited for."""
    recorded: Bool
    """Whether the capture records that something was waited for."""


class Launched:
    """The operations of one rank in the order of their launches, all together and by stream."""

    def __init__(self, work: RankWork) -> None:
        self.order = np.argsort(work.launched, kind="stable")
        self.at = work.launched[self.order]
        self.position = np.empty(len(work), np.int64)
        self.by_stream: dict[int, tuple[Int64, Int64]] = {}
        streams = work.stream[self.order]
        for stream in np.unique(streams).tolist():
            mine = self.order[streams == stream]
            self.by_stream[stream] = mine, work.launched[mine]
            self.position[mine] = np.arange(len(mine))

    def last_before(self, t: Int64) -> Int64:
        """The operation launched last before each moment, or NONE."""
        if len(self.order) == 0:
            return np.full(len(t), NONE, np.int64)
        at = np.searchsorted(self.at, t, side="left") - 1
        return np.where(at >= 0, self.order[np.maximum(at, 0)], NONE)

    def last_on(self, stream: int, t: Int64) -> Int64:
        """The operation on one stream launched last before each moment, or NONE."""
        mine, at = self.by_stream[stream]
        place = np.searchsorted(at, t, side="left") - 1
        return np.where(place >= 0, mine[np.maximum(place, 0)], NONE)

    def nth_before(self, t: Int64, stream: Int64, back: Int64) -> Int64:
        """The operation on a stream that has ``back`` later ones launched before each moment, or NONE."""
        found = np.full(len(t), NONE, np.int64)
        for each, (mine, at) in self.by_stream.items():
            here = np.flatnonzero(stream == each)
            place = np.searchsorted(at, t[here], side="left") - 1 - back[here]
            found[here] = np.where(place >= 0, mine[np.maximum(place, 0)], NONE)
        return found

    def first_after(self, t: Int64, stream: Int64) -> Int64:
        """The first operation on a stream launched after each moment, or NONE."""
        found = np.full(len(t), NONE, np.int64)
        for each, (mine, at) in self.by_stream.items():
            here = np.flatnonzero(stream == each)
            place = np.searchsorted(at, t[here], side="right")
            found[here] = np.where(place < len(mine), mine[np.minimum(place, len(mine) - 1)], NONE)
        return found

    def behind(self, t: Int64, op: Int64, streams: Int64) -> Int64:
        """How many operations on its stream were launched between each operation and a moment; negative if later."""
        count = np.zeros(len(t), np.int64)
        for each, (_, at) in self.by_stream.items():
            here = np.flatnonzero(streams == each)
            count[here] = np.searchsorted(at, t[here], side="left") - 1 - self.position[op[here]]
        return count


def launch_lag(work: RankWork, thresholds: Thresholds) -> Int64:
    """(n,) ns from the start of its launch call to the start of an operation that nothing else holds back."""
    if len(work.call_start) == 0:
        return np.zeros(len(work), np.int64)
    call = np.maximum(work.call, 0)
    longest = work.call_end[call] - work.call_start[call] + thresholds.replay_launch_ns
    return np.where(work.call != NONE, np.minimum(work.start - work.launched, longest), 0)


def ready_at(work: RankWork, lag: Int64, chains: list[Int64]) -> Int64:
    """(n,) when each operation could have started by its launch and by those before it in each chain, ns."""
    ready = np.where(work.call != NONE, work.launched + lag, np.iinfo(np.int64).min)
    for before in chains:
        ready = np.where(before != NONE, np.maximum(ready, work.end[np.maximum(before, 0)]), ready)
    return ready


def operation_waits(work: RankWork, ready: Int64, thresholds: Thresholds) -> Held:
    """Which operations wait for one on another stream; ``ready`` is from `ready_at`."""
    n = len(work)
    launched = Launched(work)
    late = np.flatnonzero(work.start - ready > thresholds.clock_tolerance_ns)
    direct = np.full(n, NONE, np.int64)
    direct[late] = _ended_last(
        work, work.start[late], work.launched[late], thresholds.replay_lag_ns, thresholds, other_than=work.stream[late]
    )
    held = np.flatnonzero(direct != NONE)
    waiting = launched.first_after(work.wait_at, work.wait_stream)
    known = np.flatnonzero(waiting != NONE)
    after = waiting[known]
    before = _who(work, launched, work.wait_at[known], after, direct[after], thresholds)
    made, makers = _makers(work, launched, direct, waiting[known], thresholds)
    pairs = np.unique(
        np.stack(
            [
                np.concatenate([held, after[before != NONE], made]),
                np.concatenate([direct[held], before[before != NONE], makers]),
            ]
        ),
        axis=1,
    )
    return Held(after=pairs[0], before=pairs[1], recorded=np.isin(pairs[0], waiting[known]))


def _makers(
    work: RankWork, launched: Launched, direct: Int64, waiting: Int64, thresholds: Thresholds
) -> tuple[Int64, Int64]:
    """(reductions that queued behind others, the compute that made what they reduce).

    A reduction that was not held up shows where on the compute stream its gradients come from; one that queued behind
    the ones before it has its own at the same place. Only where the capture records no waits of theirs.
    """
    reductions = np.flatnonzero(work.reduction & (work.call != NONE))
    reductions = reductions[~np.isin(work.stream[reductions], work.stream[waiting])]
    if not len(reductions):
        return reductions, reductions
    kinds = labels(work.stream[reductions], work.name[reductions])
    maker = direct[reductions]
    shown = np.flatnonzero((maker != NONE) & (work.kind[np.maximum(maker, 0)] == Kind.COMPUTE))
    place = _by_place(work, launched, work.launched[reductions], kinds, shown, maker, same_name=False)
    told = (maker == NONE) & (place != NONE)
    told[told] = work.end[place[told]] <= work.start[reductions[told]] + thresholds.clock_tolerance_ns
    return reductions[told], place[told]


def _ended_last(
    work: RankWork,
    moment: Int64,
    launched: Int64,
    within_ns: int,
    thresholds: Thresholds,
    *,
    other_than: Int64 | None = None,
) -> Int64:
    """The operation that ended last, and just before each moment, launched before; NONE without one."""
    by_end = np.argsort(work.end, kind="stable")
    at = np.searchsorted(work.end[by_end], moment + thresholds.clock_tolerance_ns, side="right") - 1
    found = np.full(len(moment), NONE, np.int64)
    for back in range(LOOK_BACK):
        there = at - back >= 0
        candidate = by_end[np.maximum(at - back, 0)] if len(by_end) else np.zeros(len(moment), np.int64)
        fits = there & (found == NONE)
        fits[fits] = (
            (work.end[candidate[fits]] >= moment[fits] - within_ns)
            & (work.start[candidate[fits]] < moment[fits])
            & (work.launched[candidate[fits]] <= launched[fits])
        )
        if other_than is not None:
            fits[fits] = work.stream[candidate[fits]] != other_than[fits]
        found[fits] = candidate[fits]
    return found


def _who(work: RankWork, launched: Launched, at: Int64, after: Int64, direct: Int64, thresholds: Thresholds) -> Int64:
    """For each recorded wait (at a moment, holding ``after``): the operation waited for, or NONE."""
    latest = launched.last_before(at)
    told = latest != NONE
    stream = work.stream[after]
    record = np.searchsorted(work.record_at, at) - 1
    adjacent = told & (record >= 0)
    adjacent[adjacent] = work.record_at[record[adjacent]] >= work.launched[latest[adjacent]]
    foreign = told & (work.stream[np.maximum(latest, 0)] != stream)
    by_rule = np.where(adjacent & foreign, latest, NONE)
    # A wait whose rule names what really held the operation explains it; its other waits do not.
    explained = (by_rule == direct) & (direct != NONE)
    taken = np.zeros(len(work), np.bool_)
    taken[after[explained]] = True
    alone = np.bincount(after, minlength=len(work))[after] == 1
    votes = np.flatnonzero((direct != NONE) & (explained | (~taken[after] & (alone | (by_rule == NONE)))))
    fine = labels(stream, work.name[after], np.where(told, work.name[np.maximum(latest, 0)], NONE), adjacent)
    coarse = labels(stream, work.name[after], adjacent)
    found = np.full(len(at), NONE, np.int64)
    for kinds in (fine, coarse):
        guess = _by_place(work, launched, at, kinds, votes, direct)
        found = _first_fitting(work, found, guess, after, thresholds)
        if kinds is fine:
            found = _first_fitting(work, found, by_rule, after, thresholds)
    in_turn = _in_turn(work, at, labels(stream, work.name[after]), ~adjacent, stream)
    return _first_fitting(work, found, in_turn, after, thresholds)


def _first_fitting(work: RankWork, found: Int64, guess: Int64, after: Int64, thresholds: Thresholds) -> Int64:
    """``found``, and where it is NONE the guess if that ended before what would have waited for it."""
    fits = (found == NONE) & (guess != NONE)
    fits[fits] = work.end[guess[fits]] <= work.start[after[fits]] + thresholds.clock_tolerance_ns
    return np.where(fits, guess, found)


def _by_place(
    work: RankWork,
    launched: Launched,
    at: Int64,
    kinds: Int64,
    votes: NDArray[np.intp],
    direct: Int64,
    *,
    same_name: bool = True,
) -> Int64:
    """For each wait the operation at the place where most waits of its kind found theirs; NONE without any."""
    guess = np.full(len(at), NONE, np.int64)
    if len(votes) == 0:
        return guess
    op = direct[votes]
    behind = launched.behind(at[votes], op, work.stream[op])
    earlier = behind >= 0
    votes, op, behind = votes[earlier], op[earlier], behind[earlier]
    if len(votes) == 0:
        return guess
    choice = np.stack([kinds[votes], work.stream[op], work.name[op].astype(np.int64), behind])
    distinct, count = np.unique(choice, axis=1, return_counts=True)
    best = np.lexsort((count, distinct[0]))
    last = np.flatnonzero(np.append(distinct[0][best][1:] != distinct[0][best][:-1], True))
    winner = distinct[:, best[last]]
    index = np.minimum(np.searchsorted(winner[0], kinds), winner.shape[1] - 1)
    mine = np.flatnonzero(winner[0][index] == kinds)
    place = launched.nth_before(at[mine], winner[1][index[mine]], winner[3][index[mine]])
    named = work.name[np.maximum(place, 0)] == winner[2][index[mine]]
    same = (place != NONE) & (named | (not same_name))
    guess[mine[same]] = place[same]
    return guess


def _in_turn(work: RankWork, at: Int64, kinds: Int64, usable: Bool, stream: Int64) -> Int64:
    """Pair the waits of a kind with the operations of one communication stream, each with the next one."""
    guess = np.full(len(at), NONE, np.int64)
    comm = np.flatnonzero(work.kind == Kind.COMM)
    if len(comm) == 0:
        return guess
    comm = comm[np.argsort(work.launched[comm], kind="stable")]
    of = labels(work.stream[comm], work.name[comm])
    for kind in np.unique(kinds[usable]).tolist():
        waits = np.flatnonzero(usable & (kinds == kind))
        for group in range(int(of.max()) + 1):
            ops = comm[of == group]
            if work.stream[ops[0]] == stream[waits[0]] or abs(len(ops) - len(waits)) > SAME_COUNT * len(waits):
                continue
            done = np.searchsorted(work.launched[ops], at[waits], side="left")
            place = np.arange(len(waits)) + int(np.min(done - 1 - np.arange(len(waits))))
            there = (place >= 0) & (place < len(ops))
            guess[waits[there]] = ops[place[there]]
            break
    return guess


def host_waits(work: RankWork, thresholds: Thresholds) -> Held:
    """Which calls return only when which operations have ended."""
    launched = Launched(work)
    blocking = np.flatnonzero(work.waits_for > 0)
    at, until = work.call_start[blocking], work.call_end[blocking]
    kind = work.waits_for[blocking]
    blocked = until - at > thresholds.replay_lag_ns
    own = work.waits_for_copy[blocking]
    blocked &= own == NONE
    direct = np.full(len(blocking), NONE, np.int64)
    direct[blocked] = _ended_last(work, until[blocked], at[blocked], thresholds.replay_wake_ns, thresholds)
    latest = launched.last_before(at)
    kinds = labels(work.call_name[blocking], np.where(latest != NONE, work.name[np.maximum(latest, 0)], NONE))
    by_place = _by_place(work, launched, at, kinds, np.flatnonzero(direct != NONE), direct)
    on_stream = launched.nth_before(at, work.waits_on[blocking], np.zeros(len(at), np.int64))
    after, before = [blocking[own != NONE]], [own[own != NONE]]
    event = ~np.isin(kind, (STREAM_SYNC, CONTEXT_SYNC)) & (own == NONE)
    choices = [np.where(event, direct, NONE), np.where(event & (direct == NONE), by_place, NONE)]
    choices.append(np.where(kind == STREAM_SYNC, on_stream, NONE))
    whole = np.where(kind == CONTEXT_SYNC, 0, NONE)
    for each in launched.by_stream if (whole != NONE).any() else ():
        last = launched.last_on(each, at)
        choices.append(np.where(whole != NONE, last, NONE))
    for choice in choices:
        fits = choice != NONE
        fits[fits] = work.end[choice[fits]] <= until[fits] + thresholds.clock_tolerance_ns
        after.append(blocking[fits])
        before.append(choice[fits])
    waits = np.concatenate(after)
    return Held(after=waits, before=np.concatenate(before), recorded=np.ones(len(waits), np.bool_))


def polled(work: RankWork, calls: Int64, thresholds: Thresholds) -> Held:
    """Which calls come when the last operation launched before them has ended, although nothing recorded waits for it.

    So does a host that polls an event, or launches in blocking mode. Only pauses too long to be work between two
    launches are taken for that, and only where most pauses between the same launches end so: one is chance.
    """
    start, before = work.call_start[calls], np.append(work.call_end[calls][:1], work.call_end[calls][:-1])
    latest = Launched(work).last_before(start)
    paused = (latest != NONE) & (start - before > thresholds.replay_wake_ns)
    after_end = start - work.end[np.maximum(latest, 0)] if len(work) else np.zeros(len(calls), np.int64)
    told = paused & (np.abs(after_end) <= thresholds.replay_lag_ns)
    place = labels(work.call_name[calls], np.where(latest != NONE, work.name[np.maximum(latest, 0)], NONE))
    told &= (
        np.bincount(place, weights=told)[place]
        >= thresholds.replay_polls_share * np.bincount(place, weights=paused)[place]
    )
    return Held(after=calls[told], before=latest[told], recorded=np.zeros(int(told.sum()), np.bool_))
