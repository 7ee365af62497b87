"""TK1xx: communication that no compute hides."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context


class ExposedCommunication:
    """TK100: exposed communication that no specific rule explains."""

    code = "TK100"
    title = "Exposed communication without a specific cause"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires from 2 % of the step on, naming the collectives that are exposed most."""
        step, thresholds = context.step, context.thresholds
        share = step.exposed_comm_ns / step.wall_ns if step.wall_ns else 0.0
        if share < thresholds.warning_share:
            return
        exposed = sum(row.exposed_ns for row in context.collectives)
        top = context.collectives[0] if context.collectives else None
        evidence = [
            Evidence(
                metric="exposed communication",
                value=round(share, 4),
                unit="of the step",
                threshold=thresholds.warning_share,
            ),
            Evidence(metric="overlap ratio", value=_rounded(step.overlap_ratio), unit="ratio"),
        ]
        if top and exposed:
            evidence.append(
                Evidence(metric=f"{top.op} of all exposed time", value=round(top.exposed_ns / exposed, 4), unit="ratio")
            )
        yield Finding(
            rule=self.code,
            severity=context.severity(step.exposed_comm_ns),
            title=f"Communication runs without compute beside it for {100 * share:.0f} % of the step",
            ranks=tuple(rank.rank for rank in context.ranks if rank.totals.exposed_comm_ns),
            steps=context.steps,
            cost_ns=step.exposed_comm_ns,
            gain_ns=None,
            evidence=tuple(evidence),
            fix=(
                f"Look at {top.op if top else 'the collectives'} in the timeline. Started only after the compute "
                "before it: prefetch further ahead. Started in time and long: move fewer bytes or wait for fewer ranks."
            ),
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
