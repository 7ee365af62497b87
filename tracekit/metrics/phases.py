"""Steps split by phase (forward, backward, optimizer, data, other) and by module.

Phases tile the step as steps tile the trace: the phase of an instant is that of the main stream's latest kernel, and a
kernel's phase is that of the range which launched it. Loading data launches no kernel: its phase is the gap in which
the GPU neither computes nor communicates while the host is inside a data range, up to the main stream's next kernel.

Modules share out the time operation by operation: compute, exposed communication and exposed copies go to the module
that launched them; idle time goes to the module of the operation that ends it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import gaps, owned
from tracekit.metrics.accounting import Covers, accounts, total
from tracekit.metrics.labels import Vocabulary, label_calls
from tracekit.metrics.steps import StepWindows
from tracekit.results import Account, Module
from tracekit.timeline import NONE, Kind, Ops, Process, Source

Int64 = NDArray[np.int64]

PHASES = ("forward", "backward", "optimizer", "data", "other")
DATA, OTHER = PHASES.index("data"), PHASES.index("other")
NO_MODULE = "(no module)"


def phases_of_steps(
    ops: Ops,
    process: Process,
    words: Vocabulary,
    covers: Covers,
    windows: StepWindows,
    stream: int | None,
    thread: int | None,
) -> list[dict[str, Account]]:
    """For each step its account by phase; they add up to the step's own. All empty without phase ranges."""
    marked = words.where(lambda a: a.phase is not None)
    if not marked.any():
        return [{} for _ in windows.start]
    codes = np.array([PHASES.index(a.phase) if a and a.phase in PHASES else NONE for a in words.annotations], np.int64)
    of_call = label_calls(process, marked, codes[words.of], thread)
    main = np.flatnonzero((ops.stream == stream) & (ops.source <= Source.GRAPH))
    phase = _known_before(_of_ops(ops, main, of_call, otherwise=OTHER))
    at = np.concatenate([ops.start[main], windows.start])
    label = np.concatenate([phase, np.full(len(windows.start), OTHER)])
    data_start = _data_gaps(ops, process, main, marked & (codes[words.of] == DATA))
    at = np.concatenate([at, data_start])
    label = np.concatenate([label, np.full(len(data_start), DATA)])
    rank = np.concatenate([np.zeros(len(main)), np.ones(len(windows.start)), np.full(len(data_start), 2)])
    order = np.lexsort((-rank, at))
    at, label = at[order], label[order]
    last = np.append(
        at[1:] > at[:-1], True
    )  # a step starts with its anchor, a kernel: of equal instants the kernel's phase stands
    at, label = at[last], label[last]
    inside = (at >= windows.start[0]) & (at < windows.end[-1])
    at, label = at[inside], label[inside]
    step = np.searchsorted(windows.start, at, side="right") - 1
    # A window for each run of kernels of one phase, not for each of a million kernels.
    turns = np.append(True, (label[1:] != label[:-1]) | (step[1:] != step[:-1]))
    at, label, step = at[turns], label[turns], step[turns]
    pieces = accounts(covers, at, np.append(at[1:], windows.end[-1]))
    split: list[dict[int, list[Account]]] = [{} for _ in windows.start]
    for i, piece in enumerate(pieces):
        split[int(step[i])].setdefault(int(label[i]), []).append(piece)
    return [{PHASES[p]: total(parts) for p, parts in sorted(by_phase.items())} for by_phase in split]


def _data_gaps(ops: Ops, process: Process, main: NDArray[np.intp], is_data: NDArray[np.bool_]) -> Int64:
    """Starts of the gaps without compute and communication in which the host was inside a data range.

    They last to the next kernel of the main stream.
    """
    nothing = np.empty(0, np.int64)
    rows = np.flatnonzero(is_data)
    launched = main[ops.call[main] != NONE]
    if len(rows) == 0 or len(launched) == 0:
        return nothing
    data_start, data_end = process.ranges.start[rows], process.ranges.end[rows]
    called = process.calls.start[ops.call[launched]]
    by_call = np.argsort(called, kind="stable")
    at = np.searchsorted(called[by_call], data_end)
    some = at < len(by_call)
    data_start, data_end, following = data_start[some], data_end[some], launched[by_call[at[some]]]
    working = np.flatnonzero(ops.kind != Kind.COPY)  # in order of rows, and so of starts; copies may bring the data
    reach = np.maximum.accumulate(ops.end[working])
    position = np.searchsorted(ops.start[working], ops.start[following])
    before = np.where(position > 0, reach[np.maximum(position - 1, 0)], data_start)
    start, stop = np.maximum(data_start, before), ops.start[following]
    real = (position > 0) & (start < data_end) & (start < stop)
    starts: Int64 = start[real]
    return starts


def _of_ops(ops: Ops, rows: NDArray[np.intp], of_call: Int64, *, otherwise: int) -> Int64:
    """Label of each operation's launch: ``otherwise`` outside all ranges, NONE where the launch is not known."""
    call = ops.call[rows]
    known = call != NONE
    label = np.full(len(rows), NONE, np.int64)
    found = of_call[call[known]] if known.any() else np.empty(0, np.int64)
    label[known] = np.where(found == NONE, otherwise, found)
    return label


def _known_before(label: Int64) -> Int64:
    """Unknown labels replaced by the last known one before; OTHER before the first."""
    latest = np.maximum.accumulate(np.where(label != NONE, np.arange(len(label)), -1))
    return np.where(latest >= 0, label[np.maximum(latest, 0)], OTHER)


def modules_of_window(
    ops: Ops, process: Process, words: Vocabulary, covers: Covers, start: Int64, end: Int64, thread: int | None
) -> tuple[Module, ...]:
    """The account of each module over the given disjoint windows, longest first; () where no range names a module."""
    marked = words.where(lambda a: a.module is not None)
    if not marked.any() or len(start) == 0:
        return ()
    names = sorted({a.module for a in words.annotations if a and a.module})
    codes = np.array([names.index(a.module) if a and a.module else NONE for a in words.annotations], np.int64)
    none = len(names)
    of_call = label_calls(process, marked, codes[words.of], thread)
    module = _of_ops(ops, np.arange(len(ops)), of_call, otherwise=none)
    module[module == NONE] = none
    parts = _time_by_label(ops, covers, module, none + 1, start, end)
    rows = []
    for code, name in enumerate([*names, NO_MODULE]):
        compute, comm, exposed_comm, exposed_copy, idle = (int(column[code]) for column in parts)
        account = Account(
            wall_ns=compute + exposed_comm + exposed_copy + idle,
            compute_ns=compute,
            exposed_comm_ns=exposed_comm,
            exposed_copy_ns=exposed_copy,
            idle_ns=idle,
            comm_ns=comm,
            overlapped_comm_ns=comm - exposed_comm,
        )
        if account.wall_ns or account.comm_ns:
            rows.append(Module(module=name, account=account))
    return tuple(sorted(rows, key=lambda row: -row.account.wall_ns))


def _time_by_label(
    ops: Ops, covers: Covers, label: Int64, labels: int, start: Int64, end: Int64
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """(compute, comm, exposed comm, exposed copy, idle) by label, in ns, inside the windows."""
    compute, comm, exposed_comm, exposed_copy, idle = (np.zeros(labels, np.int64) for _ in range(5))
    for low, high in contiguous(start, end):
        for kind, hidden_by in ((Kind.COMPUTE, None), (Kind.COMM, covers.compute), (Kind.COPY, covers.compute_or_comm)):
            rows = np.flatnonzero(ops.kind == kind)
            own_start, own_end = owned(ops.start[rows], ops.end[rows])
            own_start, own_end = np.clip(own_start, low, high), np.clip(own_end, low, high)
            length = own_end - own_start
            if kind is Kind.COMPUTE:
                np.add.at(compute, label[rows], length)
                continue
            exposed = length - (hidden_by.within(own_start, own_end) if hidden_by else 0)
            np.add.at(exposed_comm if kind is Kind.COMM else exposed_copy, label[rows], exposed)
            if kind is Kind.COMM:
                np.add.at(comm, label[rows], length)
        gap_start, gap_end = gaps((covers.busy.start, covers.busy.end), low, high)
        following = np.minimum(np.searchsorted(ops.start, gap_end), len(ops) - 1)
        np.add.at(idle, label[following], gap_end - gap_start)
    return compute, comm, exposed_comm, exposed_copy, idle


def contiguous(start: Int64, end: Int64) -> Sequence[tuple[int, int]]:
    """Merge windows that touch, so that a run of steps is one window."""
    merged: list[tuple[int, int]] = []
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        if merged and merged[-1][1] == low:
            merged[-1] = merged[-1][0], high
        else:
            merged.append((low, high))
    return merged
