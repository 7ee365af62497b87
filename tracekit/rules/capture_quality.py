"""TK9xx: what the captures themselves leave open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from tracekit.results import Evidence, Finding, Severity
from tracekit.rules.base import Context


class NoSteps:
    """TK901: no step ranges, so figures are for the whole capture."""

    code = "TK901"
    title = "No steps in the capture"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for ranks without steps."""
        without = tuple(rank.rank for rank in context.ranks if not rank.steps)
        if not without:
            return
        processes = {track.process for track in context.timeline.ranks if track.rank in without}
        ranges = sum(len(context.timeline.processes[process].ranges) for process in processes)
        whole = len(without) == len(context.ranks)
        yield capture_finding(
            self.code,
            "No range in the capture marks a training step: figures are for the whole of it"
            if whole
            else f"{len(without)} of {len(context.ranks)} ranks have no steps",
            without,
            [Evidence(metric="NVTX ranges in the ranks' processes", value=ranges, unit="ranges")],
            'Wrap the loop body in nvtx.annotate("step"), or name the range that marks a step with --step-marker.',
        )


class NoCommunication:
    """TK902: no communication kernels at all."""

    code = "TK902"
    title = "No communication in the capture"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires when no rank has a communication operation."""
        if any(rank.totals.comm_ns for rank in context.ranks):
            return
        yield capture_finding(
            self.code,
            "No communication ran on the GPUs in this capture",
            tuple(rank.rank for rank in context.ranks),
            [Evidence(metric="kernels", value=sum(rank.kernels for rank in context.ranks), unit="kernels")],
            "Expected on one GPU. Otherwise capture further into the run, or check that the backend is NCCL.",
        )


class OpaqueGraphs:
    """TK903: CUDA graphs traced as a whole."""

    code = "TK903"
    title = "CUDA graphs of unknown content"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires when a rank's compute time contains such graphs."""
        ranks = [rank for rank in context.ranks if rank.opaque_ns]
        if not ranks:
            return
        compute = sum(rank.totals.compute_ns for rank in ranks)
        share = sum(rank.opaque_ns for rank in ranks) / compute if compute else 1.0
        yield capture_finding(
            self.code,
            "CUDA graphs were traced as a whole: overlap with them is an upper bound",
            tuple(rank.rank for rank in ranks),
            [Evidence(metric="compute time inside graphs", value=round(min(share, 1.0), 4), unit="of compute")],
            "Capture with nsys profile --cuda-graph-trace=node to see the kernels inside.",
        )


class RankClaimedTwice:
    """TK905: two captures claim one rank."""

    code = "TK905"
    title = "Two captures claim one rank"

    def check(self, context: Context) -> Iterable[Finding]:
        """One finding for each rank that is claimed more than once."""
        for rank, paths in context.timeline.rank_conflicts:
            names = ", ".join(PurePath(path).name for path in paths[:4]) + (" and more" if len(paths) > 4 else "")
            yield capture_finding(
                self.code,
                f"{len(paths)} captures claim to be rank {rank}; all but one of them got a free number",
                (rank,),
                [Evidence(metric="captures", value=names, unit="")],
                "Analyze captures of one job only, each once; of one job, put the rank into the file names.",
                Severity.WARNING,
            )


class RaggedEnds:
    """TK904: captures that start or end at different collectives."""

    code = "TK904"
    title = "Captures start or end at different times"

    def check(self, context: Context) -> Iterable[Finding]:
        """Names ranks that no capture holds, counts collectives that not all captured, names other step numbers."""
        if not context.world.complete and context.world.captured > 1:
            yield self._not_captured(context)
        renumbered = tuple(rank.rank for rank in context.ranks if rank.steps_renumbered)
        if renumbered:
            yield capture_finding(
                self.code,
                "Ranks number their steps differently: by their collectives all have the first rank's numbers",
                renumbered,
                [Evidence(metric="ranks with other numbers", value=len(renumbered), unit="ranks")],
                "Start all captures at the same step, or put the step's number into the payload of its range.",
            )
        ragged = [link for link in context.links if link.unmatched]
        if not ragged:
            return
        ranks = tuple(sorted({rank for link in ragged for rank in link.ranks}))
        yield capture_finding(
            self.code,
            "Some collectives were captured on some ranks only: they are left out where ranks are compared",
            ranks,
            [Evidence(metric="collectives left out", value=sum(link.unmatched for link in ragged), unit="collectives")],
            "Start and stop all captures at the same step (--capture-range=cudaProfilerApi around the same steps).",
        )

    def _not_captured(self, context: Context) -> Finding:
        """What ranks cause that are not here shows as transfer: it is not hidden, and nobody else gets it."""
        world = context.world
        who = f"Only {world.captured} of {world.size} ranks were captured"
        if world.missing:
            several = len(world.missing) > 1
            who = f"{'Ranks' if several else 'Rank'} {_listed(world.missing)} of {world.size}"
            who += f" {'were' if several else 'was'} not captured"
        return capture_finding(
            self.code,
            f"{who}: waits are lower bounds",
            world.missing,
            [
                Evidence(metric="ranks captured", value=world.captured, unit=f"of {world.size}"),
                Evidence(metric="waiting for ranks that are not here", value=None, unit="ns"),
            ],
            "Analyze the captures of all ranks together. Until then what the missing ranks cause counts as transfer.",
        )


class StartUpSkew:
    """TK906: what was left out because ranks start to capture at different times."""

    code = "TK906"
    title = "Start-up skew was left out"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires where a rank waits in the first collectives for as long as would be a warning in a step."""
        left_out = context.start_up
        longest = max(left_out.wait_ns, default=0)
        if longest < context.thresholds.warning_share * context.step.wall_ns or longest == 0:
            return
        ranks = tuple(rank.rank for rank, ns in zip(context.ranks, left_out.wait_ns, strict=True) if ns)
        yield capture_finding(
            self.code,
            f"Up to {longest / 1e6:.1f} ms of waiting in first collectives is left out: captures do not start together",
            ranks,
            [
                Evidence(metric="first collectives left out", value=left_out.collectives, unit="a rank, at most"),
                Evidence(metric="longest wait in them", value=longest, unit="ns"),
                Evidence(metric="time in them, mean over ranks", value=_mean(left_out.time_ns), unit="ns"),
            ],
            "Nothing to mend. To see these waits, begin the capture on all ranks behind a barrier, or a step earlier.",
        )


class ClocksNotAlignable:
    """TK908: a capture whose clock does not fit the others'."""

    code = "TK908"
    title = "Clocks cannot be aligned"

    def check(self, context: Context) -> Iterable[Finding]:
        """Names the captures; what needs one clock is not said about their ranks."""
        if not context.not_aligned:
            return
        names = ", ".join(PurePath(path).name for path in context.not_aligned[:4])
        captures = {i for i, c in enumerate(context.timeline.captures) if c.path in context.not_aligned}
        yield capture_finding(
            self.code,
            f"{len(context.not_aligned)} of {len(context.timeline.captures)} captures have a clock that fits no other",
            tuple(rank.rank for rank in context.ranks if rank.capture in captures),
            [Evidence(metric="captures", value=names, unit="")],
            "Are they of one job, and do they overlap in time? Capture all ranks over the same steps.",
            Severity.WARNING,
        )


class LaunchRowsMissing:
    """TK907: kernels without the call that launched them."""

    code = "TK907"
    title = "Launch rows are missing"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires when fewer kernels than the threshold have their launch row."""
        least = context.thresholds.launch_rows_share
        ranks = [rank for rank in context.ranks if rank.kernels_launched < least * rank.kernels]
        if not ranks:
            return
        share = sum(rank.kernels_launched for rank in ranks) / sum(rank.kernels for rank in ranks)
        yield capture_finding(
            self.code,
            f"Only {100 * share:.0f} % of the kernels have their launch call: steps, phases and modules miss the rest",
            tuple(rank.rank for rank in ranks),
            [Evidence(metric="kernels with their launch", value=round(share, 4), unit="of kernels", threshold=least)],
            "Export the whole report (no --start/--end trimming) and capture with -t cuda,nvtx.",
        )


def _listed(ranks: Sequence[int]) -> str:
    """``3 and 7``; of many the first ones and how many more there are."""
    if len(ranks) > 8:
        return f"{', '.join(map(str, ranks[:6]))} and {len(ranks) - 6} more"
    *rest, last = map(str, ranks)
    return f"{', '.join(rest)} and {last}" if rest else last


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values)) if values else 0


def capture_finding(
    code: str,
    title: str,
    ranks: tuple[int, ...],
    evidence: Iterable[Evidence],
    fix: str,
    severity: Severity = Severity.INFO,
) -> Finding:
    """A finding about the capture, which costs no time of the step."""
    return Finding(
        rule=code,
        severity=severity,
        title=title,
        ranks=ranks,
        steps=(),
        cost_ns=None,
        gain_ns=None,
        evidence=tuple(evidence),
        fix=fix,
    )
