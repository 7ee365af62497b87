"""Why a rank arrives late at collectives: its own compute, its idle GPU, or its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover
from tracekit.metrics.accounting import Covers
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.stragglers import Arrivals, Windows, compared
from tracekit.results import Account, Step
from tracekit.timeline import NONE, Kind, Process, Ranges, RankTrack, Source

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Why one rank (or ranks in turn) arrives late."""

    cause: str
    """slow_compute, host_stall, late_launch, data, sequence_length or unknown; silent where nothing explains it."""
    compute_excess_ns: float
    """Compute a step beyond its peers' median."""
    idle_excess_ns: float
    """Idle time a step beyond its peers' median."""
    kernel_ratio: float | None
    """Duration of the same kernels over the peers', by time; None where no kernel is shared."""
    slow_kernels_share: float | None
    """Share of the shared kernels' time in kernels that are slow here."""
    launch_share: float | None
    """Share of its late collectives that start right after their launch call; None without launch rows."""


SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepMatrix:
    """Figures by rank and steady step, ns; NaN where a rank lacks the step."""

    compute: Float
    idle: Float
    data: Float
    """Time without compute and communication while the host is inside a data range."""
    forward: Float
    backward: Float

    @classmethod
    def of(
        cls,
        by_rank: Sequence[Sequence[Step]],
        totals: Sequence[Account],
        in_data: Sequence[Int64],
        steps: Sequence[int],
    ) -> StepMatrix:
        """From each rank's steps and what it idles `in_data` in each; without steps the totals count as one."""
        n, k = len(by_rank), max(len(steps), 1)
        out = {name: np.full((n, k), np.nan) for name in ("compute", "idle", "data", "forward", "backward")}
        column = {number: i for i, number in enumerate(steps)}
        for row, (mine, whole, waiting) in enumerate(zip(by_rank, totals, in_data, strict=True)):
            if not steps:
                out["compute"][row, 0], out["idle"][row, 0] = whole.compute_ns, whole.idle_ns
                out["data"][row, 0] = waiting.sum()
            for step, ns in zip(mine, waiting.tolist(), strict=bool(steps)):
                if step.step not in column:
                    continue
                at = row, column[step.step]
                out["compute"][at], out["idle"][at], out["data"][at] = step.account.compute_ns, step.account.idle_ns, ns
                for phase in ("forward", "backward"):
                    if phase in step.by_phase:
                        out[phase][at] = step.by_phase[phase].compute_ns
        return cls(**out)

    def columns(self, picked: Sequence[int]) -> StepMatrix:
        """Only the picked steps."""
        names = ("compute", "idle", "data", "forward", "backward")
        return StepMatrix(**{name: getattr(self, name)[:, list(picked)] for name in names})

    def others(self) -> Int64:
        """(steps,) how many ranks beside one hold each step; at least 1."""
        held: Int64 = np.count_nonzero(~np.isnan(self.compute), axis=0)
        return np.maximum(held - 1, 1)


def idle_in_data(covers: Covers, ranges: Ranges, is_data: NDArray[np.bool_], start: Int64, end: Int64) -> Int64:
    """ns of each window in which the GPU neither computes nor communicates while the host is inside a data range.

    Not the data phase: a gather ahead of the first kernel of a step would end that one before the loader is done.
    """
    working = covers.compute_or_comm
    both = Cover.of(
        np.concatenate([working.start, ranges.start[is_data]]), np.concatenate([working.end, ranges.end[is_data]])
    )
    return both.within(start, end) - working.within(start, end)


def row_means(values: Float) -> Float:
    """(ranks,) mean over the steps that a rank has; 0 for a rank without any."""
    have = ~np.isnan(values)
    means: Float = np.where(have, values, 0.0).sum(axis=1) / np.maximum(have.sum(axis=1), 1)
    return means


def why_persistent(
    row: int,
    alike: Sequence[int],
    track: RankTrack,
    process: Process,
    found: RankCollectives,
    arrivals: Arrivals,
    matrix: StepMatrix,
    medians: Callable[[int], Medians],
    thresholds: Thresholds,
) -> Lateness:
    """Why the rank in ``row`` is last again and again, held against its peers but for those that are late ``alike``.

    ``medians`` gives a row's compute kernels in the steps that count.
    """
    peers = compared(arrivals.peers, row)
    others = peers[~np.isin(peers, alike)]
    compute, idle = row_means(matrix.compute), row_means(matrix.idle)
    # What one rank loses to them a step; by way of others, ranks wait for it that it never meets.
    waiting = np.maximum(matrix.others() - (len(alike) - 1), 1)
    late = float((arrivals.caused[list(alike)].sum(axis=0) / waiting).sum()) / matrix.compute.shape[1]
    compute_excess = float(compute[row] - np.median(compute[others]))
    idle_excess = float(idle[row] - np.median(idle[others]))
    ratio, slow_share = kernel_ratio(medians(row), [medians(i) for i in others.tolist()], thresholds)
    launch = launch_share(track, process, found, arrivals.late[row], thresholds)
    enough = thresholds.explained_share * late
    # Half of the delay by each of two reasons is explained too: the greater one is the cause.
    together = max(compute_excess, 0.0) + max(idle_excess, 0.0) >= enough
    # The median of its peers is that of the slow ones where half of them are slow.
    beside = peers if len(alike) == 1 else others
    slower = compute[row] >= thresholds.slow_compute_ratio * np.median(compute[beside])
    cause = SILENT
    if slower and (compute_excess >= enough or (together and compute_excess >= idle_excess)):
        slow = ratio is not None and ratio >= thresholds.slow_compute_ratio
        cause = "slow_compute" if slow else "unknown"
    elif idle_excess >= enough or (together and idle_excess > compute_excess):
        cause = "data" if _in_data(matrix, row, others, idle_excess, thresholds) else "host_stall"
    elif launch is not None and launch >= thresholds.explained_share:
        cause = "late_launch"
    elif launch is None or not _launches_known(track, thresholds):
        cause, launch = "unknown", None
    return Lateness(
        cause=cause,
        compute_excess_ns=compute_excess,
        idle_excess_ns=idle_excess,
        kernel_ratio=ratio,
        slow_kernels_share=slow_share,
        launch_share=launch,
    )


def _in_data(matrix: StepMatrix, row: int, others: NDArray[np.intp], excess: float, thresholds: Thresholds) -> bool:
    data = row_means(matrix.data)
    return bool(data[row] - np.median(data[others]) >= thresholds.explained_share * excess)


Medians = dict[tuple[int, int], tuple[float, int]]
"""Median duration and count of each compute kernel, by (name, grid)."""


def kernel_ratio(mine: Medians, theirs: Sequence[Medians], thresholds: Thresholds) -> tuple[float | None, float | None]:
    """(duration of the same compute kernels over the peers', share of their time in slow ones), by time.

    Kernels are the same by name and grid. Medians over launches, and over peers: one long launch decides nothing.
    """
    weight, slow, total_mine = 0.0, 0.0, 0.0
    for key, (own, count) in mine.items():
        seen = [each[key][0] for each in theirs if key in each]
        if not seen:
            continue
        reference = float(np.median(seen)) * count
        weight += reference
        total_mine += own * count
        if own >= thresholds.slow_compute_ratio * float(np.median(seen)):
            slow += reference
    return (total_mine / weight, slow / weight) if weight else (None, None)


def kernel_medians(track: RankTrack, windows: Windows) -> Medians:
    """The rank's compute kernels that start in its windows."""
    ops = track.ops
    rows = np.flatnonzero((ops.kind == Kind.COMPUTE) & (windows.column_of(ops.start) != NONE))
    key = ops.name[rows].astype(np.int64) * (1 << 32) + (ops.grid[rows] & 0xFFFFFFFF)
    order = np.argsort(key, kind="stable")
    key, duration = key[order], (ops.end[rows] - ops.start[rows])[order]
    heads = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.empty(0, np.int64)
    edges = [*heads.tolist(), len(key)]
    return {
        (int(key[a]) >> 32, int(key[a]) & 0xFFFFFFFF): (float(np.median(duration[a:b])), b - a)
        for a, b in pairwise(edges)
    }


def launch_share(
    track: RankTrack, process: Process, found: RankCollectives, late: Int64, thresholds: Thresholds
) -> float | None:
    """Share of the rank's ``late`` collectives that start right after their launch call; None where few have one.

    What queued behind other communication was launched in time, and was waited for by nobody: it does not count.
    """
    row = found.row[late]
    call = track.ops.call[row]
    known = call != NONE
    if len(call) == 0 or np.count_nonzero(known) < thresholds.launch_rows_share * len(call):
        return None
    lag = track.ops.start[row[known]] - process.calls.end[call[known]]
    return float(np.count_nonzero(lag <= thresholds.launch_lag_ns) / len(lag))


def _launches_known(track: RankTrack, thresholds: Thresholds) -> bool:
    """Whether nearly all of the rank's kernels have their launch row: without, silence proves nothing."""
    call = track.ops.call[track.ops.source <= Source.GRAPH]
    return bool(np.count_nonzero(call != NONE) >= thresholds.launch_rows_share * len(call))


def why_rotating(arrivals: Arrivals, matrix: StepMatrix, thresholds: Thresholds) -> str:
    """Why ranks take turns in being late: what the last rank of each step did more of than its peers."""
    by_compute = by_idle = by_data = late = 0.0
    idle_before, data_before = _with_step_before(matrix.idle), _with_step_before(matrix.data)
    for step in range(arrivals.caused.shape[1]):
        caused = arrivals.caused[:, step]
        if not caused.any():
            continue
        row = int(np.argmax(caused))
        others = compared(arrivals.peers, row)
        others = others[others != row]
        wait = float(caused[row] / matrix.others()[step])
        late += wait
        compute = matrix.compute[:, step]
        # Kernels take a little longer now on one rank, now on another: somebody is always last.
        if compute[row] >= thresholds.slow_compute_ratio * np.nanmedian(compute[others]):
            by_compute += min(max(_excess(compute, row, others), 0.0), wait)
        idle = min(max(_excess(idle_before[:, step], row, others), 0.0), wait)
        by_idle += idle
        by_data += min(max(_excess(data_before[:, step], row, others), 0.0), idle)
    if late == 0:
        return SILENT
    if by_idle >= thresholds.explained_share * late:
        return "data" if by_data >= thresholds.explained_share * by_idle else "host_stall"
    if by_compute >= thresholds.explained_share * late:
        return "sequence_length" if _lengths_vary(matrix, thresholds) else "unknown"
    return SILENT


def _with_step_before(values: Float) -> Float:
    """Each step's value plus that of the step before: what keeps the first kernel of a step waiting lies in there."""
    both = values.copy()
    both[:, 1:] += np.nan_to_num(values[:, :-1])
    return both


def _excess(values: Float, row: int, others: NDArray[np.intp]) -> float:
    difference = values[row] - np.nanmedian(values[others])
    return float(np.nan_to_num(difference))


def _lengths_vary(matrix: StepMatrix, thresholds: Thresholds) -> bool:
    """Compute varies over ranks and steps, and backward with forward: the input is long, not the GPU slow."""
    forward, backward = matrix.forward.ravel(), matrix.backward.ravel()
    both = ~np.isnan(forward) & ~np.isnan(backward)
    if np.count_nonzero(both) < 4:
        return False
    total = forward[both] + backward[both]
    variation = float(total.std() / total.mean()) if total.mean() else 0.0
    if variation < thresholds.length_variation or forward[both].std() == 0 or backward[both].std() == 0:
        return False
    return float(np.corrcoef(forward[both], backward[both])[0, 1]) >= thresholds.length_correlation
