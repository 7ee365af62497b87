"""TK409: code that is loaded when it is first used, while the GPU waits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.activity import Doing
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, Severity, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.host import without_launches
from tracekit.rules.loss import Loss, milliseconds
from tracekit.runs import few_runs
from tracekit.timeline import NONE, Source


class LazyLoading:
    """TK409: kernels, libraries and graphs are loaded when they are first used."""

    code = "TK409"
    title = "Code is loaded when it is first used"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires for idle gaps in which the host loads what the operation that ends them needs, in steady steps."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.IDLE, "first_use"))
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            yield from _before_the_figures(context)
            return
        kernels, libraries, graphs = _loaded(loss)
        again = bool(context.steps) and len(loss.steps) > context.thresholds.pauses_share * len(context.steps)
        yield loss.report(
            self.code,
            _title(loss, libraries, graphs, again),
            [
                Evidence(metric="idle while code is loaded", value=milliseconds(loss.cost_ns), unit="ms a step"),
                Evidence(metric="gaps that a kernel's first launch ends", value=kernels, unit=""),
                Evidence(metric="gaps in which a library is set up", value=libraries, unit=""),
                Evidence(metric="gaps in which a graph is captured or made", value=graphs, unit=""),
                Evidence(metric="longest", value=milliseconds(float(loss.lengths().max())), unit="ms"),
            ],
            _fix(context, again),
        )


def _before_the_figures(context: Context) -> Iterable[Finding]:
    """First use in steps that are left out is no loss of a typical step; where it is long it is said all the same."""
    lost = [int(v.bubbles.ns[v.bubbles.of_cause(Lost.IDLE, "first_use")].sum()) for v in context.views]
    whole = sum(rank.totals.wall_ns for rank in context.ranks)
    if not context.steps or not whole or sum(lost) < context.thresholds.warning_share * whole:
        return
    share = sum(lost) / whole
    yield Finding(
        rule=LazyLoading.code,
        severity=Severity.INFO,
        title=f"Code is loaded when it is first used, in warm-up: {100 * share:.0f} % of the capture, in no figure",
        ranks=tuple(view.rank for view, ns in zip(context.views, lost, strict=True) if ns),
        steps=(),
        cost_ns=None,
        gain_ns=None,
        evidence=(
            Evidence(
                metric="idle while code is loaded, mean over ranks",
                value=milliseconds(sum(lost) / len(lost)),
                unit="ms in all",
            ),
        ),
        fix="Steps after it are not slower for it. To have it out of the capture, begin it after the warm-up.",
    )


def _title(loss: Loss, libraries: int, graphs: int, again: bool) -> str:
    what = "Kernels"
    if graphs or libraries:
        parts = ["kernels", *(["libraries"] if libraries else []), *(["graphs"] if graphs else [])]
        what = f"{', '.join(parts[:-1])} and {parts[-1]}".capitalize()
    if again:
        return f"{what} are loaded again and again: the GPU idles {loss.percent}"
    when = f" in step{'s' * (len(loss.steps) > 1)} {few_runs(loss.steps)}" if loss.steps else ""
    return f"{what} are loaded when they are first used{when}: the GPU idles {loss.percent}"


def _fix(context: Context, again: bool) -> str:
    if again:
        return (
            "What is loaded in most steps was unloaded or compiled anew: keep modules and graphs, keep shapes the "
            "same, and give the compiler's cache a place that lasts."
        )
    keep = (
        "A longer warm-up (--skip-warmup) keeps it out of the figures."
        if context.steps
        else ("Begin the capture after it: first use says nothing of what follows.")
    )
    return f"Run each shape once before it counts, or load all at start: CUDA_MODULE_LOADING=EAGER. {keep}"


def _loaded(loss: Loss) -> tuple[int, int, int]:
    """(gaps that end with a kernel's launch, gaps in which a library is set up, and those in which a graph is)."""
    kernels = libraries = graphs = 0
    for view, rows in zip(loss.views, loss.rows, strict=True):
        after = np.unique(view.bubbles.after[rows])
        after = after[after != NONE]
        inside = _calls_inside(view, after, rows)
        graph = np.array([bool(g) for _, g in inside], np.bool_)
        library = np.array([bool(lib) for lib, _ in inside], np.bool_)
        kernel = view.ops.source[after] == Source.KERNEL
        graphs += int(graph.sum())
        libraries += int((library & ~graph).sum())
        kernels += int((kernel & ~library & ~graph).sum())
    return kernels, libraries, graphs


def _calls_inside(view: RankView, after: NDArray[np.int64], rows: NDArray[np.intp]) -> list[tuple[int, int]]:
    """For each operation that ends gaps: how many calls that set up a library and that make a graph lie in them."""
    calls, names = view.process.calls, view.names
    library = view.activity.library
    loading = np.flatnonzero(view.activity.doing == Doing.FIRST_USE)
    graph = loading[[_is_graph(names[i]) for i in calls.name[loading].tolist()]] if len(loading) else loading
    found = []
    for op in after.tolist():
        mine = rows[view.bubbles.after[rows] == op]
        low, high = int(view.bubbles.start[mine].min()), int(view.bubbles.end[mine].max())
        counts = [int(np.count_nonzero((calls.start[r] >= low) & (calls.start[r] < high))) for r in (library, graph)]
        found.append((counts[0], counts[1]))
    return found


def _is_graph(name: str) -> bool:
    return "Graph" in name or "Capture" in name
