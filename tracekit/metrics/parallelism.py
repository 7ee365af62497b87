"""Which parallelism each communication operation of a rank serves: data, tensor, expert, context or pipeline.

Communicator (where none is known: stream), op and place in the step tell. Gathers and reductions of parameters and
gradients have their own causes; those of the other kinds stand between two kernels of a layer by nature, and no
prefetch helps them. What cannot be told is `UNDECIDED` and counts as it did before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.metrics.work import Work
from tracekit.timeline import NONE

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

DATA, TENSOR, EXPERT, CONTEXT, PIPELINE, UNDECIDED = "data", "tensor", "expert", "context", "pipeline", "undecided"
PARALLELISMS = (DATA, TENSOR, EXPERT, CONTEXT, PIPELINE, UNDECIDED)
BY_NATURE = (TENSOR, EXPERT, CONTEXT, PIPELINE)
"""Those whose communication compute needs at once."""
REDUCTIONS = ("all_reduce", "reduce_scatter")
PASSED_ON = ("send_recv", "all_to_all")
FORWARD, BACKWARD = PHASES.index("forward"), PHASES.index("backward")

_ATTENTION = re.compile(r"flash|fmha|attention|attn|softmax|sdpa|cudnn_generated_fort", re.IGNORECASE)
_EXPERTS = re.compile(
    r"GroupProblemShape|grouped_?gemm|GroupedGemm|group_gemm|ragged|moe|expert|topk|permute|scatter_add", re.IGNORECASE
)
_GROUPED = re.compile(
    r"GroupProblemShape|grouped_?gemm|GroupedGemm|group_gemm|ragged|fused_moe|moe_gemm", re.IGNORECASE
)


def parallelism_of(view: RankView, work: Work, thresholds: Thresholds) -> Int8:
    """Index into `PARALLELISMS` for each communication operation of a rank."""
    found = view.collectives
    kind = np.full(len(found.row), PARALLELISMS.index(DATA), np.int8)
    if len(found.row) == 0:
        return kind
    op = np.array([name for _, name in found.group])[found.of]
    around = _Around(view, work, thresholds)
    lanes = list(_lanes(view))
    reducing = [lane[np.isin(op[lane], REDUCTIONS)] for lane in lanes]
    beside = sum(len(rows) > 0 for rows in reducing) > 1
    for lane, reductions in zip(lanes, reducing, strict=True):
        if _within_layers(around, reductions, thresholds, beside=beside):
            kind[lane[~np.isin(op[lane], PASSED_ON)]] = PARALLELISMS.index(TENSOR)
        for name, purpose in (("all_to_all", _exchange), ("send_recv", _passing)):
            mine = lane[op[lane] == name]
            if len(mine):
                kind[mine] = PARALLELISMS.index(purpose(around, mine, thresholds))
    return kind


def _lanes(view: RankView) -> Iterator[NDArray[np.intp]]:
    """Operations of one communicator, or of one stream where none is known, each in order of start."""
    found = view.collectives
    known = np.array([name is not None for name, _ in found.group])[found.of]
    names = sorted({name for name, _ in found.group if name is not None})
    code = np.array([names.index(name) if name is not None else NONE for name, _ in found.group], np.int64)[found.of]
    for number in range(len(names)):
        yield np.flatnonzero(known & (code == number))
    streams = view.ops.stream[found.row]
    for stream in np.unique(streams[~known]).tolist():
        yield np.flatnonzero(~known & (streams == stream))


class _Around:
    """What stands around the communication operations of a rank."""

    def __init__(self, view: RankView, work: Work, thresholds: Thresholds) -> None:
        row = view.collectives.row
        self.view, self.work = view, work
        self.start, self.end = view.ops.start[row], view.ops.end[row]
        self.phase = view.labels.phase[row]
        self.step = view.labels.step[row]
        self._near = thresholds.handover_ns

    def blocking(self, rows: NDArray[np.intp]) -> Bool:
        """Starts when compute ends, nothing runs beside it, and compute goes on when it ends."""
        work, near = self.work, self._near
        start, end = self.start[rows], self.end[rows]
        beside = work.cover.within(start, end)
        ends = np.sort(work.end)
        before = np.append(np.iinfo(np.int64).min // 4, ends)[np.searchsorted(ends, start + near, side="right")]
        after = np.append(work.start, np.iinfo(np.int64).max // 4)[np.searchsorted(work.start, end - near)]
        result: Bool = (beside <= near) & (start - before <= near) & (after - end <= near)
        return result

    def ran(self, pattern: re.Pattern[str], start: Int64, end: Int64) -> Bool:
        """Whether a kernel of such a name started in each interval."""
        names = self.view.ops.name[self.work.row]
        distinct, inverse = np.unique(names, return_inverse=True)
        named = np.array([pattern.search(self.view.names[i]) is not None for i in distinct.tolist()], np.bool_)
        starts = self.work.start[named[inverse]] if len(distinct) else np.empty(0, np.int64)
        result: Bool = np.searchsorted(starts, end) > np.searchsorted(starts, start)
        return result


def _within_layers(around: _Around, reductions: NDArray[np.intp], thresholds: Thresholds, *, beside: bool) -> bool:
    """Whether these are reductions of split layers: activations are reduced in the forward pass as well.

    Sharding and data parallelism reduce nothing there. A norm or the statistics of a batch are reduced there too: they
    are small beside the gradients on the same communicator. Without ranges for phases they must hold compute up
    throughout the step, ``beside`` reductions of another communicator.
    """
    if len(reductions) < thresholds.layer_collectives:
        return False
    if np.count_nonzero(around.phase[reductions] != NONE) < 0.5 * len(reductions):
        blocking = np.count_nonzero(around.blocking(reductions)) >= thresholds.parallelism_share * len(reductions)
        return beside and bool(blocking) and _evenly_spread(around, reductions, thresholds)
    forward = around.phase[reductions] == FORWARD
    steps = max(len(np.unique(around.step[reductions[forward]])), 1)
    length = around.end[reductions] - around.start[reductions]
    many = np.count_nonzero(forward) >= thresholds.layer_collectives * steps
    return bool(many and length[forward].sum() >= thresholds.forward_reduced_share * length.sum())


def _evenly_spread(around: _Around, rows: NDArray[np.intp], thresholds: Thresholds) -> bool:
    """Whether there is no pass without them: gradients leave the forward pass out."""
    done = around.work.cover.upto(around.start[rows])
    gaps = np.diff(done)
    wide = gaps[gaps > thresholds.wide_gap_ratio * np.median(gaps)]
    return bool(wide.sum() <= thresholds.wide_gap_share * max(int(gaps.sum()), 1))


def _exchange(around: _Around, rows: NDArray[np.intp], thresholds: Thresholds) -> str:
    """What an all-to-all is for, by the kernels between two in a row: one brings, the next one brings back."""
    start, end = around.end[rows[:-1]], around.start[rows[1:]]
    within = around.step[rows[:-1]] == around.step[rows[1:]]
    enough = thresholds.parallelism_share * np.count_nonzero(within) / 2
    if enough == 0:
        return UNDECIDED
    if np.count_nonzero(around.ran(_EXPERTS, start, end) & within) >= enough:
        return EXPERT
    return CONTEXT if np.count_nonzero(around.ran(_ATTENTION, start, end) & within) >= enough else UNDECIDED


def _passing(around: _Around, rows: NDArray[np.intp], thresholds: Thresholds) -> str:
    """What sends and receives are for: keys and values for attention beside them, or a pipeline's activations."""
    near = thresholds.handover_ns
    length = around.end[rows] - around.start[rows]
    beside = around.ran(_ATTENTION, around.start[rows] - near, around.start[rows] + np.minimum(length, near) + near)
    if np.count_nonzero(beside) >= thresholds.parallelism_share * len(rows):
        return CONTEXT
    steps = max(len(np.unique(around.step[rows])), 1)
    return PIPELINE if len(rows) >= steps and _passes_in_turn(around, steps) else UNDECIDED


def _passes_in_turn(around: _Around, steps: int) -> bool:
    """Whether forward and backward passes of several micro-batches take turns in a step."""
    phase = around.view.labels.phase[around.work.row]
    phase = phase[np.isin(phase, (FORWARD, BACKWARD))]
    turns = int(np.count_nonzero((phase[1:] == FORWARD) & (phase[:-1] == BACKWARD)))
    return turns >= 2 * steps - 1


def expert_work(view: RankView) -> int:
    """Time of the experts' kernels of a rank, ns."""
    names = np.unique(view.ops.name)
    wanted = [i for i in names.tolist() if _GROUPED.search(view.names[i])]
    mine = np.isin(view.ops.name, wanted)
    return int((view.ops.end[mine] - view.ops.start[mine]).sum())
