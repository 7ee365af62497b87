"""TK406: a host that pauses, once or now and then; what it does then gives the pause its name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.annotations import describe_range
from tracekit.kernels import describe_kernel
from tracekit.metrics.activity import names_that
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.frameworks import in_words_of, runtime_of
from tracekit.rules.host import without_launches
from tracekit.rules.loss import Loss, Weights, milliseconds, thread_of
from tracekit.rules.one_offs import one_offs
from tracekit.runs import few_runs
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]

NAMED_SHARE = 0.5
"""Most pauses lie in one kind of range from this share of their time on."""
LONGEST_NAMED = 4
"""A range this × as long as a pause in it encloses more than the pause, and does not name it."""


class Pauses:
    """TK406: the host pauses."""

    code = "TK406"
    title = "The host pauses"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires for long quiet gaps that are no regular work, and for communicators that are set up in steady steps."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        irregular = {view.rank: one_offs(view, context) for view in context.views}
        setting_up = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.IDLE, "comm_init"))
        if setting_up.share >= context.thresholds.reported_share and setting_up.cost_ns:
            yield _communicator(setting_up)
        loss = Loss.of(context, lambda view: irregular[view.rank] & ~view.bubbles.of_cause(Lost.IDLE, "comm_init"))
        if loss.share >= context.thresholds.reported_share and loss.cost_ns:
            yield _pause(context, loss)


def _communicator(loss: Loss) -> Finding:
    return loss.report(
        Pauses.code,
        f"{_when(loss)}NCCL sets up a communicator, {milliseconds(float(loss.lengths().max())):.1f} ms",
        [
            Evidence(metric="idle while a communicator is made", value=milliseconds(loss.cost_ns), unit="ms a step"),
            Evidence(metric="times", value=len(loss.lengths()), unit="in all"),
        ],
        in_words_of(
            loss.context.timeline,
            "Make communicators before the steps that count: a first collective on each group at start sets it up.",
            torch="init_process_group(device_id=...) connects at once rather than at the first collective.",
        ),
    )


def _pause(context: Context, loss: Loss) -> Finding:
    lengths = loss.lengths()
    where, between, count = _range_of(loss), _between(loss), len(lengths)
    system = None if where else _os_call_of(loss)
    often = _steps_with(loss)
    repeated = between is not None and not context.steps
    few = bool(context.steps) and often > 1
    shown = milliseconds(float(np.median(lengths)) if few or repeated else float(lengths.max()))
    doing = f"is in {where}" if where else f"is in the system call {system}" if system else "makes no CUDA call"
    if repeated and between is not None:
        (before, after), times = between
        title = f"Between {before} and {after} the host {doing} for {shown:.1f} ms, {times} times"
    elif few:
        title = f"The host pauses now and then: it {doing} for {shown:.1f} ms, in {often} of {loss.windows} steps"
    elif context.steps:
        title = f"{_when(loss)}the host {doing} for {shown:.1f} ms"
    else:
        title = f"The host {doing} for up to {shown:.1f} ms, {'once' if count == 1 else f'{count} times'}"
    return loss.report(
        Pauses.code,
        title,
        [
            Evidence(metric="pauses without a CUDA call", value=count, unit="in all"),
            Evidence(metric="longest pause", value=milliseconds(float(lengths.max())), unit="ms"),
            Evidence(
                metric="steps with a pause" if context.steady else "ranks with a pause",
                value=round(often / loss.windows, 4),
                unit="of steps and ranks" if context.steady else "of ranks",
            ),
            Evidence(metric="longest one ends with", value=_longest_before(loss), unit=""),
            Evidence(metric="range that most of it is in", value=where, unit=""),
            Evidence(metric="system call that most of it is in", value=system, unit=""),
        ],
        _fix(context, few, where, system),
    )


def _fix(context: Context, few: bool, where: str | None, system: str | None) -> str:
    """Python's collector is suspected only of pauses that come again, in a Python process, inside no range."""
    if where is not None:
        return f"See what {where} does there, and whether it can wait, or be done beside the launches."
    collects = (
        "Python's garbage collector pauses like this: gc.disable() and gc.collect() on all ranks at the same step "
    )
    collects += "(gc.freeze() after set-up). Otherwise capture with --python-sampling=true to see what runs then."
    if system is not None:
        kind = next(
            (text for names, text in SYSTEM_CALLS if any(name in system.removeprefix("pthread_") for name in names)),
            "See who calls it",
        )
        return (
            f"{kind}: nsys profile -t cuda,nvtx,osrt --osrt-backtrace-threshold=500000 shows from where it is called."
        )
    sampling = "To see what the host does then, capture with nsys profile -t cuda,nvtx,osrt --sample=process-tree"
    runtime = runtime_of(context.timeline)
    in_python = runtime in ("torch", "jax", "python")
    if in_python and few:
        return (
            "Python's garbage collector pauses like this: gc.disable() and gc.collect() on all ranks at the same step "
            "(gc.freeze() after set-up). Otherwise capture with --python-sampling=true to see what runs then."
        )
    return sampling + (" --python-sampling=true." if in_python else ".")


def _when(loss: Loss) -> str:
    """``Step 3, once: `` or ``Steps 3 and 7: ``; nothing without steps."""
    if not loss.steps:
        return ""
    once = ", once" if len(loss.steps) == 1 else ""
    return f"Step{'s' * (len(loss.steps) > 1)} {few_runs(loss.steps)}{once}: "


def _steps_with(loss: Loss) -> int:
    return sum(len(np.unique(view.bubbles.step[rows])) for view, rows in zip(loss.views, loss.rows, strict=True))


def _range_of(loss: Loss) -> str | None:
    """The range, of those around the middle of the pauses on the launching thread, that most of their time is in."""
    time, whole = Weights(), 0
    for view, rows in zip(loss.views, loss.rows, strict=True):
        bubbles = view.bubbles
        middle = (bubbles.start[rows] + bubbles.end[rows]) // 2
        name = _innermost(view, thread_of(view, bubbles.after[rows]), middle, bubbles.ns[rows])
        time.add(name, bubbles.ns[rows], view.names.__getitem__)
        whole += int(bubbles.ns[rows].sum())
    most, ns = time.most()
    return most if ns >= NAMED_SHARE * whole else None


SYSTEM_CALLS = (
    (
        ("read", "open", "mmap", "fread", "stat", "getdents"),
        "Files are read meanwhile: read ahead, beside the launches",
    ),
    (("write", "sync", "fclose"), "Files are written meanwhile: write in a thread of its own"),
    (("cond", "sem", "futex", "mutex", "join", "rwlock"), "The thread waits for another one"),
    (("sleep",), "The thread sleeps: wait for what it waits for instead"),
    (("poll", "select", "epoll", "recv", "accept", "connect"), "The thread waits for a socket or another process"),
    (("ioctl",), "The driver works: memory that is mapped, or a GPU that is set up"),
)
"""By parts of names; the first that fits."""


def _os_call_of(loss: Loss) -> str | None:
    """The system call of the launching thread, or of the main one, that most of the pauses' time is in."""
    time, whole = Weights(), 0
    for view, rows in zip(loss.views, loss.rows, strict=True):
        bubbles, thread = view.bubbles, thread_of(view, view.bubbles.after[rows])
        start, end = bubbles.start[rows], bubbles.end[rows]
        whole += int(bubbles.ns[rows].sum())
        for call in view.process.long_os_calls:
            mine = (thread == call.thread) | np.bool_(view.activity.speaker == call.thread)
            inside = np.minimum(end, call.end if call.end is not None else end) - np.maximum(start, call.start)
            ns = int(inside[mine & (inside > 0)].sum())
            if ns:
                time.add_one(call.name, ns)
    most, ns = time.most()
    return most if ns >= NAMED_SHARE * whole else None


def _innermost(view: RankView, thread: Int64, at: Int64, ns: Int64) -> Int64:
    """Name of the innermost range at each instant, if it is not much longer than the pause; NONE without one."""
    ranges = view.process.ranges
    telling = view.activity.named_ranges & ~names_that(ranges.name, view.names, _is_frame)
    answer = np.full(len(at), NONE, np.int64)
    for each in np.unique(thread).tolist():
        mine = thread == each
        row = view.activity.range_around(each, at[mine], telling)
        row, known = np.maximum(row, 0), row != NONE
        if len(ranges):
            known &= ranges.end[row] - ranges.start[row] <= LONGEST_NAMED * ns[mine]
            answer[mine] = np.where(known, ranges.name[row], NONE)
    return answer


def _is_frame(name: str) -> bool:
    """A step or a phase: where the pause comes, not what it is."""
    told = describe_range(None, name)
    return told is not None and (told.step is not None or told.phase not in (None, "data"))


def _between(loss: Loss) -> tuple[tuple[str, str], int] | None:
    """((operation before, operation after) that most pauses lie between, how many) where they come again and again."""
    pairs = Weights()
    counts: dict[str, int] = {}
    for view, rows in zip(loss.views, loss.rows, strict=True):
        known = rows[(view.bubbles.before[rows] != NONE) & (view.bubbles.after[rows] != NONE)]
        for row in known.tolist():
            ends = view.bubbles.before[row], view.bubbles.after[row]
            key = "\n".join(describe_kernel(view.names[view.ops.name[op]]).short for op in ends)
            counts[key] = counts.get(key, 0) + 1
            pairs.add_one(key, int(view.bubbles.ns[row]))
    most, ns = pairs.most()
    if most is None or counts[most] < loss.context.thresholds.repeated_pauses * len(loss.ranks):
        return None
    if ns < NAMED_SHARE * int(loss.lengths().sum()):
        return None
    before, after = most.split("\n")
    return (before, after), counts[most]


def _longest_before(loss: Loss) -> str | None:
    """The operation that ends the longest pause."""
    best: tuple[int, str] | None = None
    for view, rows in zip(loss.views, loss.rows, strict=True):
        row = rows[int(np.argmax(view.bubbles.ns[rows]))]
        after, ns = int(view.bubbles.after[row]), int(view.bubbles.ns[row])
        if after != NONE and (best is None or ns > best[0]):
            best = ns, describe_kernel(view.names[view.ops.name[after]]).short
    return best[1] if best else None
