"""TK201 to TK205 and TK208: ranks that others wait for. How they are told apart: docs/explanation/stragglers.md."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, Severity, SkippedRule, Straggler
from tracekit.rules.base import Context

ONE_RANK = "waiting for peers needs at least two ranks that communicate"
ALL_CAPTURES = "the captures of all ranks, analyzed together"


class _StragglerRule:
    """Reports the stragglers of some verdicts and causes."""

    code: str
    title: str
    verdicts: frozenset[str]
    causes: frozenset[str]

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """One finding for all ranks that take turns, one for a persistent rank."""
        if not context.waits_told:
            yield SkippedRule(rule=self.code, reason=ONE_RANK, capture_with=ALL_CAPTURES)
            return
        mine = [s for s in context.stragglers if s.verdict in self.verdicts and s.cause in self.causes]
        if mine:
            yield self._finding(context, mine)

    def _finding(self, context: Context, stragglers: list[Straggler]) -> Finding:
        # A wait counts for the step in which its collective began: some of it can lie in the next.
        cost = context.ledger.claim(waiting, at_most_ns=sum(s.wait_caused_ns for s in stragglers))
        return Finding(
            rule=self.code,
            severity=context.severity(cost),
            title=self.claim(context, stragglers),
            ranks=tuple(s.rank for s in stragglers),
            steps=context.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=tuple(self.evidence(context, stragglers)),
            fix=self.fix(context, stragglers),
        )

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """The title of the finding."""
        raise NotImplementedError

    def evidence(self, context: Context, stragglers: list[Straggler]) -> Iterable[Evidence]:
        """What proves it: the share of the waiting, and how often the rank is last."""
        first, thresholds = stragglers[0], context.thresholds
        yield Evidence(
            metric="share of all waiting that it causes",
            value=round(sum(s.caused_share for s in stragglers), 4),
            unit="ratio",
            threshold=thresholds.persistent_share if first.verdict == "persistent" else None,
        )
        yield Evidence(
            metric="collectives in which it arrives last",
            value=round(sum(s.last_arrivals_share for s in stragglers), 4),
            unit="ratio",
        )

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """What to try."""
        raise NotImplementedError


def waiting(view: RankView) -> NDArray[np.bool_]:
    """The bubbles in which a rank waits for its peers."""
    return view.bubbles.of_cause(Lost.EXPOSED_COMM, "peer_wait")


def _where(context: Context, rank: int) -> str:
    """``GPU 3 of node7``, as far as the capture tells."""
    found = next(r for r in context.ranks if r.rank == rank)
    return f"device {found.device}" + (f" of {found.host}" if found.host else "")


class SlowCompute(_StragglerRule):
    """TK201: the same kernels take longer on one rank."""

    code = "TK201"
    title = "A rank computes slowly, and its peers wait for it"
    verdicts = frozenset({"persistent"})
    causes = frozenset({"slow_compute"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Names the rank."""
        return f"Rank {stragglers[0].rank} computes slowly, and the others wait for it"

    def evidence(self, context: Context, stragglers: list[Straggler]) -> Iterable[Evidence]:
        """Kernel by kernel, and in all."""
        first, limit = stragglers[0], context.thresholds.slow_compute_ratio
        yield Evidence(
            metric="same kernels, this rank over its peers",
            value=None if first.kernel_ratio is None else round(first.kernel_ratio, 4),
            unit="x",
            threshold=limit,
        )
        yield Evidence(
            metric="compute over its peers' median", value=round(first.compute_ratio, 4), unit="x", threshold=limit
        )
        yield from super().evidence(context, stragglers)

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Look at the device."""
        where = _where(context, stragglers[0].rank)
        return (
            f"Compare clocks, temperature and power of {where} with its neighbours' (nvidia-smi -q -d "
            "CLOCK,PERFORMANCE,TEMPERATURE); look for another process on it; then swap it."
        )


class HostStall(_StragglerRule):
    """TK202: one rank's GPU runs dry while its host does something else."""

    code = "TK202"
    title = "A rank's host stalls, and its peers wait for it"
    verdicts = frozenset({"persistent"})
    causes = frozenset({"host_stall", "data"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Names the rank, and its data loading where that is it."""
        first = stragglers[0]
        what = "waits for its data" if first.cause == "data" else "stalls on the host"
        return f"Rank {first.rank} {what}, and the others wait for it"

    def evidence(self, context: Context, stragglers: list[Straggler]) -> Iterable[Evidence]:
        """Idle time beyond the peers'."""
        first = stragglers[0]
        idle = first.idle_excess_ns
        yield Evidence(
            metric="idle beyond its peers", value=None if idle is None else round(idle / 1e6, 3), unit="ms a step"
        )
        yield Evidence(metric="compute over its peers' median", value=round(first.compute_ratio, 4), unit="x")
        yield from super().evidence(context, stragglers)

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Look at the host."""
        first = stragglers[0]
        if first.cause == "data":
            return (
                f"Look at the loader of rank {first.rank}: workers, prefetch_factor, the storage of its shard, and the "
                "processor cores that it may use."
            )
        return (
            f"Look at what the launching thread of rank {first.rank} does in the gap: garbage collection, logging, a "
            "checkpoint, another process on its cores. Capture with -t osrt, or --python-sampling=true, to see it."
        )


class LateLaunch(_StragglerRule):
    """TK203: one rank launches its collectives late."""

    code = "TK203"
    title = "A rank launches its collectives late"
    verdicts = frozenset({"persistent"})
    causes = frozenset({"late_launch"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Names the rank."""
        return f"Rank {stragglers[0].rank} launches its collectives late, and the others wait for it"

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Look at the launching thread."""
        return (
            f"The host of rank {stragglers[0].rank} runs just ahead of its GPU: look for a slower or shared processor "
            "(NUMA binding, power governor), and give the launching thread a core of its own."
        )


class RotatingStalls(_StragglerRule):
    """TK204: ranks take turns in stalling."""

    code = "TK204"
    title = "Ranks take turns in stalling on the host"
    verdicts = frozenset({"rotating"})
    causes = frozenset({"host_stall", "data"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Says that it is nobody in particular."""
        what = "waiting for data" if stragglers[0].cause == "data" else "stalling on the host"
        return f"{len(stragglers)} ranks take turns in {what}, and all wait each time"

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Make all pause at once."""
        if stragglers[0].cause == "data":
            return "Give every rank more loader workers and deeper prefetch: one slow sample must not reach the GPU."
        return (
            "Pauses like those of Python's garbage collector: call gc.disable(), and gc.collect() on all ranks at the "
            "same step, every few hundred steps."
        )


class SequenceLengths(_StragglerRule):
    """TK205: inputs of different length."""

    code = "TK205"
    title = "Ranks get inputs of different length"
    verdicts = frozenset({"rotating", "persistent"})
    causes = frozenset({"sequence_length"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Says that the work is uneven."""
        return "Ranks get inputs of different length, and all wait for the longest"

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Balance the batches."""
        return "Balance tokens, not samples: bucket or pack sequences so that every rank's batch costs the same."


class EveryKernelSlow:
    """TK208: refines TK201: the whole device is slow, not one kernel."""

    code = "TK208"
    title = "Every kernel of a rank is slow"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires beside TK201 where nearly all kernels are slow; carries no cost of its own."""
        for straggler in context.stragglers:
            share = straggler.slow_kernels_share
            if straggler.cause != "slow_compute" or share is None or share < context.thresholds.every_kernel_share:
                continue
            yield Finding(
                rule=self.code,
                severity=Severity.INFO,
                title=f"Nearly every kernel of rank {straggler.rank} is slow: suspect clocks or heat, not the code",
                ranks=(straggler.rank,),
                steps=context.steps,
                cost_ns=None,
                gain_ns=None,
                evidence=(
                    Evidence(
                        metric="time in kernels that are slow here",
                        value=round(share, 4),
                        unit="of shared kernels",
                        threshold=context.thresholds.every_kernel_share,
                    ),
                ),
                fix=f"Read the clocks of {_where(context, straggler.rank)} under load: a limit of power or heat?",
            )
