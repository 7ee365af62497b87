"""TK206, TK207, TK209: uneven stages, a slow link, a jittery network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.links import Link, slow_links
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, Severity, SkippedRule, Straggler
from tracekit.rules.base import Context
from tracekit.rules.stragglers import ALL_CAPTURES, ONE_RANK, ranks_in_words, waiting

NO_SIZES = "no message sizes in the captures"
RANKS_MISSING = "not all ranks were captured: a missing one may arrive late"
WITH_SIZES = "nsys 2024.6 or newer, nsys export --include-blobs=true"


class StageImbalance:
    """TK206: the ranks of one pipeline stage, or of another group, have more to compute than those of another."""

    code = "TK206"
    title = "Stages or groups of ranks are uneven"

    def check(self, context: Context) -> Iterable[Finding]:
        """Compares the median compute of the stages, and of half of the ranks late together; no rank is blamed."""
        group = [s for s in context.stragglers if s.cause == "stage"]
        if group:
            yield self._group(context, group)
        elif len(context.stages) >= 2:
            yield from self._stages(context)

    def _group(self, context: Context, group: list[Straggler]) -> Finding:
        compute = {rank.rank: rank.totals.compute_ns for rank in context.ranks}
        ranks = tuple(sorted(s.rank for s in group))
        others = median([ns for rank, ns in compute.items() if rank not in ranks] or [0])
        ratio = median(compute[rank] for rank in ranks) / others if others else None
        cost = context.ledger.claim(waiting, at_most_ns=sum(s.wait_caused_ns for s in group))
        several, whom = len(ranks) > 1, "them" if len(ranks) > 1 else "it"
        more = (
            f"compute{'' if several else 's'} {100 * (ratio - 1):.0f} % more" if ratio is not None else "have more work"
        )
        return Finding(
            rule=self.code,
            severity=context.severity(cost),
            title=f"{ranks_in_words(group).capitalize()} {more} than the others, which wait for {whom}",
            ranks=ranks,
            steps=context.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=(
                Evidence(
                    metric="compute of these ranks over that of the others",
                    value=None if ratio is None else round(ratio, 4),
                    unit="x",
                    threshold=context.thresholds.slow_compute_ratio,
                ),
                Evidence(
                    metric="share of all waiting that they cause",
                    value=round(sum(s.caused_share for s in group), 4),
                    unit="ratio",
                    threshold=context.thresholds.persistent_share,
                ),
            ),
            fix=(
                "So many ranks alike are hardly broken devices: look for what sets them apart, such as a stage with "
                "more layers, longer inputs, another kind of GPU, or a host with a lower limit of power."
            ),
        )

    def _stages(self, context: Context) -> Iterable[Finding]:
        compute = {rank.rank: rank.totals.compute_ns for rank in context.ranks}
        by_stage = [median(compute[rank] for rank in stage) for stage in context.stages]
        ratio = max(by_stage) / median(by_stage) if median(by_stage) else 1.0
        if ratio < context.thresholds.stage_ratio:
            return
        slowest = context.stages[by_stage.index(max(by_stage))]
        yield Finding(
            rule=self.code,
            severity=Severity.INFO,
            title=f"The stage of ranks {_listed(slowest)} computes {100 * (ratio - 1):.0f} % more than the median",
            ranks=slowest,
            steps=context.steps,
            cost_ns=None,
            gain_ns=None,
            evidence=(
                Evidence(
                    metric="compute of the slowest stage over the median stage",
                    value=round(ratio, 4),
                    unit="x",
                    threshold=context.thresholds.stage_ratio,
                ),
            ),
            fix="Move layers from this stage to others; the first and last also carry embeddings and the loss.",
        )


class SlowLink:
    """TK207: one group of ranks transfers slowly while nobody arrives late."""

    code = "TK207"
    title = "A link is slow"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Compares groups that run the same op on as many ranks, of the same size or at the same places of the step."""
        if not context.waits_told:
            yield SkippedRule(rule=self.code, reason=ONE_RANK, capture_with=ALL_CAPTURES)
            return
        if not any(link.busbw_gbps or link.step_transfer_ns for link in context.links):
            yield SkippedRule(rule=self.code, reason=NO_SIZES, capture_with=WITH_SIZES)
            return
        slow = slow_links(context.links, context.thresholds)
        if slow:
            yield self._finding(context, slow)

    def _finding(self, context: Context, slow: Sequence[tuple[Link, float]]) -> Finding:
        worst, ratio = min(slow, key=lambda pair: pair[1])
        windows = sum(max(len(rank.steps), 1) for rank in context.ranks)  # a link's figures are for the whole capture
        cost = sum(min(link.exposed_transfer_ns, _excess(link, r)) for link, r in slow) // windows
        cost = context.ledger.claim(lambda view: _transfers(view, slow), at_most_ns=cost)
        for_it = sum(s.wait_caused_ns for s in context.stragglers if s.cause == "link")
        cost += context.ledger.claim(waiting, at_most_ns=for_it) if for_it else 0
        ranks = tuple(sorted({rank for link, _ in slow for rank in link.ranks}))
        return Finding(
            rule=self.code,
            severity=context.severity(cost),
            title=f"The link between ranks {_listed(worst.ranks)} has {ratio:.2f} x its peers' bandwidth",
            ranks=ranks,
            steps=context.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=(
                *_speed(worst, ratio, context.thresholds.slow_link_ratio),
                Evidence(
                    metric="waiting over transfer",
                    value=round(worst.wait_share, 4),
                    unit="ratio",
                    threshold=context.thresholds.skew_share,
                ),
            ),
            fix=(
                f"Test the path between {' and '.join(worst.hosts[:4])} alone (nccl-tests, ib_write_bw); read the "
                "NIC's counters; check that GPU and NIC are on one PCIe switch (nvidia-smi topo -m)."
            ),
        )


def _speed(link: Link, ratio: float, limit: float) -> Iterable[Evidence]:
    """How fast the link is, its peers, and its peak where the GPU and the way between the ranks are known."""
    if link.busbw_gbps is None:
        metric = f"transfer time of its peers' {link.op}s over its own, same places of the step"
        yield Evidence(metric=metric, value=round(ratio, 4), unit="x", threshold=limit)
        yield Evidence(metric="median transfer", value=round(link.transfer_ns / 1e6, 3), unit="ms")
        return
    metric = f"bus bandwidth of {link.op} over its peers'"
    yield Evidence(metric=metric, value=round(ratio, 4), unit="x", threshold=limit)
    yield Evidence(metric="bus bandwidth", value=round(link.busbw_gbps, 2), unit="GB/s")
    if link.peak_gbps:
        yield Evidence(metric="NVLink peak, one direction", value=link.peak_gbps, unit="GB/s")


def _excess(link: Link, ratio: float) -> int:
    """Transfer time of all the link's collectives on all its ranks beyond what its peers need, ns."""
    return round(link.transfer_ns * (1 - ratio)) * link.count * len(link.ranks)


class NetworkJitter:
    """TK209: the transfer of one collective takes a different time each time."""

    code = "TK209"
    title = "The network is jittery"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """p95 over median transfer of the same op and size, or at the same place of the step, with little waiting."""
        if not context.waits_told:
            yield SkippedRule(rule=self.code, reason=ONE_RANK, capture_with=ALL_CAPTURES)
            return
        if not context.world.complete:
            yield SkippedRule(rule=self.code, reason=RANKS_MISSING, capture_with=ALL_CAPTURES)
            return
        thresholds = context.thresholds
        if context.links and all(link.jitter is None for link in context.links):
            yield SkippedRule(rule=self.code, reason=NO_SIZES, capture_with=WITH_SIZES)
            return
        jittery = [
            (link, link.jitter)
            for link in context.links
            if link.count >= thresholds.jitter_count
            and link.jitter is not None
            and link.jitter >= thresholds.jitter_ratio
            and link.wait_share <= thresholds.skew_share
        ]
        if not jittery:
            return
        worst, ratio = max(jittery, key=lambda pair: pair[1])
        yield Finding(
            rule=self.code,
            severity=Severity.INFO,
            title=f"The same {worst.op} takes {ratio:.1f} x as long in one of twenty cases, and nobody is late",
            ranks=worst.ranks,
            steps=context.steps,
            cost_ns=None,
            gain_ns=None,
            evidence=(
                Evidence(
                    metric="p95 over median transfer",
                    value=round(ratio, 4),
                    unit="x",
                    threshold=thresholds.jitter_ratio,
                ),
                Evidence(metric="collectives", value=worst.count, unit="collectives"),
                Evidence(
                    metric="waiting over transfer",
                    value=round(worst.wait_share, 4),
                    unit="ratio",
                    threshold=thresholds.skew_share,
                ),
            ),
            fix=f"Read the NIC counters of {', '.join(worst.hosts[:4])}; look for what else uses their switches.",
        )


def _transfers(view: RankView, slow: Sequence[tuple[Link, float]]) -> NDArray[np.bool_]:
    """The bubbles of one rank in which slow links move data."""
    ops = {link.op for link, _ in slow if view.rank in link.ranks}
    found = view.collectives
    rows = found.row[np.isin(found.of, [i for i, (_, op) in enumerate(found.group) if op in ops])]
    bubbles = view.bubbles
    moving = (bubbles.lost == Lost.EXPOSED_COMM) & ~bubbles.of_cause(Lost.EXPOSED_COMM, "peer_wait", "start_up")
    result: NDArray[np.bool_] = moving & np.isin(bubbles.op, rows)
    return result


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    return shown + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
