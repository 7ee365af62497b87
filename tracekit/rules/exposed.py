"""TK1xx: communication that no compute hides."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.metrics.bubbles import EXPOSED_COMM_CAUSES, Lost
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context


class ExposedCommunication:
    """TK100: exposed communication that no specific rule explains."""

    code = "TK100"
    title = "Exposed communication without a specific cause"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires from 2 % of the step on, naming the collectives that are exposed most."""
        step, thresholds = context.step, context.thresholds
        rest = context.ledger.unclaimed(Lost.EXPOSED_COMM)
        share = rest / step.wall_ns if step.wall_ns else 0.0
        if share < thresholds.warning_share:
            return
        whole = "the step" if context.steady else "the capture"
        op, exposed_share = _most_exposed(context)
        evidence = [
            Evidence(
                metric="exposed communication that no other finding explains",
                value=round(share, 4),
                unit=f"of {whole}",
                threshold=thresholds.warning_share,
            ),
            Evidence(metric="overlap ratio", value=_rounded(step.overlap_ratio), unit="ratio"),
        ]
        if op:
            evidence.append(Evidence(metric=op, value=round(exposed_share, 4), unit="of exposed communication"))
        evidence += _by_cause(context, rest)
        what = "Other communication" if rest < step.exposed_comm_ns else "Communication"
        yield Finding(
            rule=self.code,
            severity=context.severity(rest),
            title=f"{what} runs without compute beside it for {100 * share:.0f} % of {whole}",
            ranks=tuple(rank.rank for rank in context.ranks if rank.totals.exposed_comm_ns),
            steps=context.steps,
            cost_ns=rest,
            gain_ns=None,
            evidence=tuple(evidence),
            fix=_fix(op, waits_told=context.waits_told),
        )


WORDS = {
    "start_up": "first collective of a capture",
    "peer_wait": "waiting for peers",
    "rate_limiter": "gathers that the host held back",
    "no_prefetch": "gathers never issued ahead",
    "queued_behind_comm": "gathers queued behind reductions",
    "launched_late": "launched late by the host",
    "first_gather": "first gather of the step",
    "microbatch_reduce": "reductions of early microbatches",
    "last_reduce": "last reduction of the step",
    "optimizer_phase": "after the optimizer's step",
    "on_compute_stream": "on the compute stream",
    "launch_order": "held up by the order of launch",
    "serialized": "between compute that may need it",
    "latency_bound": "many small collectives",
    "bandwidth": "longer than the compute beside it",
    "behind_copy": "compute waits for a copy",
    "host_late": "compute launched late by the host",
    "between_kernels": "gaps between kernels",
    "unknown": "unknown",
}
"""The causes of exposed communication in words."""


def _by_cause(context: Context, rest: int) -> list[Evidence]:
    """The causes that most of the rest has."""
    left = {
        cause: context.ledger.left(lambda view, cause=cause: view.bubbles.of_cause(Lost.EXPOSED_COMM, cause))  # type: ignore[misc]
        for cause in EXPOSED_COMM_CAUSES
    }
    named = sorted(((ns, cause) for cause, ns in left.items() if ns >= 0.1 * rest), reverse=True)
    return [
        Evidence(metric=WORDS[cause], value=round(ns / context.step.wall_ns, 4), unit="of the step")
        for ns, cause in named
    ]


GATHERS = (
    "Look at the all-gathers in the timeline. If each starts only after the compute before it, gather the next unit "
    "earlier (prefetch); if they start in time and last too long, move fewer bytes or keep the root unit unsharded."
)
REDUCTIONS = (
    "Look at the last reduction of the step in the timeline: a smaller last bucket or unit leaves less of it exposed."
)
COMPARE = "Compare compute between the ranks first: where one is slower, the others wait for it. "
OTHERS = (
    "Look at the collectives in the timeline: if they start only after the compute before them, issue them earlier; if "
    "they start in time and last too long, move fewer bytes."
)


def _fix(op: str, *, waits_told: bool) -> str:
    if op == "all-gather":
        return GATHERS
    if op in ("reduce-scatter", "all-reduce"):
        # Where waiting is told apart, a slow rank has a finding of its own.
        return REDUCTIONS if waits_told else COMPARE + REDUCTIONS
    return OTHERS


def _most_exposed(context: Context) -> tuple[str, float]:
    """(the op with most exposed time in the steady steps, its share of it); ("", 0.0) without any."""
    by_op: dict[str, int] = {}
    for row in context.collectives:
        ns = row.exposed_per_step_ns if context.steady else row.exposed_ns
        by_op[row.op] = by_op.get(row.op, 0) + (ns or 0)
    whole = sum(by_op.values())
    if not whole:
        return "", 0.0
    op = max(by_op, key=lambda name: by_op[name])
    return op.replace("_", "-"), by_op[op] / whole


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
