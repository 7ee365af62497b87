"""TK201 to TK205 and TK208: ranks that others wait for. How they are told apart: docs/explanation/stragglers.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

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
        """One finding for all ranks that take turns, or that are late together."""
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
        alone = len(stragglers) == 1
        yield Evidence(
            metric=f"share of all waiting that {'it causes' if alone else 'they cause'}",
            value=round(sum(s.caused_share for s in stragglers), 4),
            unit="ratio",
            threshold=thresholds.persistent_share if first.verdict == "persistent" else None,
        )
        yield Evidence(
            metric=f"collectives in which {'it arrives' if alone else 'one of them arrives'} last",
            value=round(sum(s.last_arrivals_share for s in stragglers), 4),
            unit="ratio",
        )

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """What to try."""
        raise NotImplementedError


def waiting(view: RankView) -> NDArray[np.bool_]:
    """The bubbles in which a rank waits for its peers."""
    return view.bubbles.of_cause(Lost.EXPOSED_COMM, "peer_wait")


def ranks_in_words(stragglers: Sequence[Straggler], most: int = 8) -> str:
    """``rank 3``, ``ranks 2 and 5``; of more than ``most`` the first."""
    ranks = sorted(s.rank for s in stragglers)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    first, last = ranks[: min(most, len(ranks) - 1)], ranks[min(most, len(ranks) - 1) :]
    return f"ranks {', '.join(map(str, first))} and {last[0] if len(last) == 1 else f'{len(last)} more'}"


def _claim(stragglers: list[Straggler], one: str, several: str) -> str:
    """What the ranks do, and that the others wait for them."""
    alone = len(stragglers) == 1
    who = _all_of_hosts(stragglers) or ranks_in_words(stragglers).capitalize()
    return f"{who} {one if alone else several}{when(stragglers)}, and the others wait for {'it' if alone else 'them'}"


def _all_of_hosts(stragglers: Sequence[Straggler]) -> str | None:
    """``All 4 ranks of node1`` where the ranks are those of whole hosts."""
    hosts = stragglers[0].hosts
    if not hosts or len(hosts) > MOST_PLACES:
        return None
    return f"All {len(stragglers)} ranks of {' and '.join(PurePath(host).name for host in hosts)}"


def when(stragglers: Sequence[Straggler]) -> str:
    """`` from step 9 on``, `` in every third step``; nothing for ranks that are always late."""
    first = stragglers[0]
    if len({(s.pattern, s.from_step, s.period) for s in stragglers}) > 1:
        return ""
    if first.from_step is not None:
        return f" from step {first.from_step} on"
    if first.period is not None:
        return f" in every {ORDINALS.get(first.period, f'{first.period}th')} step"
    return ""


ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


def _where_all(context: Context, stragglers: list[Straggler]) -> str:
    """The devices of the first few."""
    places = [_where(context, s.rank) for s in sorted(stragglers, key=lambda s: s.rank)]
    more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
    return ", ".join(places[:MOST_PLACES]) + more


MOST_PLACES = 4
"""Devices that a fix spells out."""


def _where(context: Context, rank: int) -> str:
    """``GPU 3 (PCI 0000:1a:00.0) of node7``, as far as the capture tells.

    CUDA's ordinal names a GPU only within its process: where others of the host have the same one, the process is said.
    """
    found = next(r for r in context.ranks if r.rank == rank)
    host = f" of {found.host}" if found.host else ""
    bus = f" (PCI {found.pci_bus})" if found.pci_bus else ""
    if found.gpu is not None:
        return f"GPU {found.gpu}{bus}{host}"
    twice = any(r.host == found.host and r.device == found.device and r.rank != rank for r in context.ranks)
    return f"device {found.device}{f' as process {found.pid} sees it' if twice else ''}{bus}{host}"


class SlowCompute(_StragglerRule):
    """TK201: the same kernels take longer on one rank."""

    code = "TK201"
    title = "A rank computes slowly, and its peers wait for it"
    verdicts = frozenset({"persistent"})
    causes = frozenset({"slow_compute"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Names the ranks."""
        return _claim(stragglers, "computes slowly", "compute slowly")

    def evidence(self, context: Context, stragglers: list[Straggler]) -> Iterable[Evidence]:
        """Kernel by kernel, and in all."""
        limit, alone = context.thresholds.slow_compute_ratio, len(stragglers) == 1
        ratios = [s.kernel_ratio for s in stragglers if s.kernel_ratio is not None]
        yield Evidence(
            metric=f"same kernels, {'this rank over its peers' if alone else 'the fastest of them over their peers'}",
            value=round(min(ratios), 4) if ratios else None,
            unit="x",
            threshold=limit,
        )
        yield Evidence(
            metric=f"compute over {'its' if alone else 'their'} peers' median",
            value=round(min(s.compute_ratio for s in stragglers), 4),
            unit="x",
            threshold=limit,
        )
        yield from super().evidence(context, stragglers)

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Look at the device."""
        where, alone = _where_all(context, stragglers), len(stragglers) == 1
        whose, which = ("its", "it") if alone else ("their", "them")
        return (
            f"Compare clocks, temperature and power of {where} with {whose} neighbours' (nvidia-smi -q -d "
            f"CLOCK,PERFORMANCE,TEMPERATURE); look for another process on {which}; then swap {which}."
        )


class HostStall(_StragglerRule):
    """TK202: one rank's GPU runs dry while its host does something else."""

    code = "TK202"
    title = "A rank's host stalls, and its peers wait for it"
    verdicts = frozenset({"persistent"})
    causes = frozenset({"host_stall", "data"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Names the ranks, and their data loading where that is it."""
        if all(s.cause == "data" for s in stragglers):
            return _claim(stragglers, "waits for its data", "wait for their data")
        return _claim(stragglers, "stalls on the host", "stall on the host")

    def evidence(self, context: Context, stragglers: list[Straggler]) -> Iterable[Evidence]:
        """Idle time beyond the peers'."""
        alone = len(stragglers) == 1
        idle = [s.idle_excess_ns for s in stragglers if s.idle_excess_ns is not None]
        yield Evidence(
            metric=f"idle beyond {'its peers' if alone else 'their peers, the least of them'}",
            value=round(min(idle) / 1e6, 3) if idle else None,
            unit="ms a step",
        )
        yield Evidence(
            metric=f"compute over {'its' if alone else 'their'} peers' median",
            value=round(max(s.compute_ratio for s in stragglers), 4),
            unit="x",
        )
        yield from super().evidence(context, stragglers)

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Look at the host."""
        who, alone = ranks_in_words(stragglers), len(stragglers) == 1
        if all(s.cause == "data" for s in stragglers):
            return (
                f"Look at the loader of {who}: workers, prefetch_factor, the storage of "
                f"{'its shard' if alone else 'their shards'}, and the processor cores that it may use."
            )
        return (
            f"Look at what the launching thread of {who} does in the gap: garbage collection, logging, a checkpoint, "
            "another process on its cores. Capture with -t osrt, or --python-sampling=true, to see it."
        )


class LateLaunch(_StragglerRule):
    """TK203: one rank launches its collectives late."""

    code = "TK203"
    title = "A rank launches its collectives late"
    verdicts = frozenset({"persistent"})
    causes = frozenset({"late_launch"})

    def claim(self, context: Context, stragglers: list[Straggler]) -> str:
        """Names the ranks."""
        return _claim(stragglers, "launches its collectives late", "launch their collectives late")

    def fix(self, context: Context, stragglers: list[Straggler]) -> str:
        """Look at the launching thread."""
        return (
            f"The host of {ranks_in_words(stragglers)} runs just ahead of its GPU: look for a slower or shared "
            "processor (NUMA binding, power governor), and give the launching thread a core of its own."
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
        shares = {
            s.rank: s.slow_kernels_share
            for s in context.stragglers
            if s.cause == "slow_compute" and s.slow_kernels_share is not None
        }
        limit = context.thresholds.every_kernel_share
        slow = [s for s in context.stragglers if shares.get(s.rank, 0.0) >= limit]
        if not slow:
            return
        yield Finding(
            rule=self.code,
            severity=Severity.INFO,
            title=f"Nearly every kernel of {ranks_in_words(slow)} is slow: suspect clocks or heat, not the code",
            ranks=tuple(s.rank for s in slow),
            steps=context.steps,
            cost_ns=None,
            gain_ns=None,
            evidence=(
                Evidence(
                    metric="time in kernels that are slow here",
                    value=round(min(shares[s.rank] for s in slow), 4),
                    unit="of shared kernels",
                    threshold=limit,
                ),
            ),
            fix=f"Read the clocks of {_where_all(context, slow)} under load: a limit of power or heat?",
        )
