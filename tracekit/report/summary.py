"""What the terminal and the page both say: bars by rank, the verdict, and the notes, as plain values.

Nothing is measured here: figures are means and shares of what the analysis holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from tracekit.metrics.accounting import total
from tracekit.report.causes import FAMILIES, Family, family_of_exposed, family_of_idle
from tracekit.report.theory import NO_STRATEGY, SURE
from tracekit.report.verdict import claim, headline_finding, lead_of, notes, straggler_tag, title
from tracekit.report.words import Scale, clean, in_ticks, plural, share
from tracekit.results import Account, Analysis, Finding, Rank, Step
from tracekit.runs import runs

BARS_SHOWN = 16
"""With more ranks than this, only the oddest and the median get a bar."""
ODDEST_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Where a mean step (without steps: the whole capture) goes, on one rank or over all. Times in ns."""

    rank: int | None
    """None for the mean over ranks."""
    wall_ns: float
    compute_ns: float
    exposed_comm_ns: float
    exposed_copy_ns: float
    idle_ns: float
    families: dict[str, float]
    """The same time by family of cause, in the order of `FAMILIES`; families without time are left out."""
    overlap_ratio: float | None
    accused: str | None = None
    """Why this rank and not all of them: how it holds up the others, or the code of the finding that leads."""

    @property
    def parts_ns(self) -> tuple[float, float, float, float]:
        """Compute, exposed communication, exposed copy and idle: the identity's right side."""
        return (self.compute_ns, self.exposed_comm_ns, self.exposed_copy_ns, self.idle_ns)

    @property
    def wait_ns(self) -> float:
        """Time spent waiting for peers, as far as causes are known."""
        return self.families.get("wait", 0.0)

    def shown(self, scale: Scale) -> dict[str, str]:
        """The families as they are shown everywhere: compute and copies are the identity's, all add up to the whole."""
        compute, comm, copy, idle = in_ticks(self.parts_ns, scale)
        ticks = {"compute": compute, "copy": copy}
        rest = [key for key in self.families if key not in ticks]
        ticks |= dict(zip(rest, in_ticks([self.families[key] for key in rest], scale, comm + idle), strict=True))
        return {key: scale.format(ticks[key] * scale.tick_ns) for key in self.families}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything that is said before details."""

    job: str
    steps: str | None
    """Which steps the figures are for; None without steps."""
    whole: str
    """What the shares are shares of: ``step`` or ``capture``."""
    scale: Scale
    mean: Bar
    bars: tuple[Bar, ...]
    """The ranks to show, in order of rank."""
    rest: str | None
    """One line for the ranks without a bar."""
    causes: tuple[tuple[Family, str, float], ...]
    """(family, cause, ns) of the lost time of a mean steady step, most first; () without steps."""
    headline: str
    lead: str
    notes: tuple[str, ...]
    """What limits these figures, most limiting first."""

    @property
    def families(self) -> tuple[str, ...]:
        """Families that any bar shows, in order."""
        seen = {key for bar in (self.mean, *self.bars) for key in bar.families}
        return tuple(family.key for family in FAMILIES if family.key in seen)


def summarise(analysis: Analysis) -> Summary:
    """Condense an analysis into what the first screen says."""
    plain = [bar for rank in analysis.ranks if (bar := _rank_bar(analysis, rank))]
    mean = _mean_bar(analysis, plain)
    leading = headline_finding(analysis, max(mean.parts_ns[1:]))
    accused = _accused(analysis, leading)
    bars = [replace(bar, accused=accused.get(bar.rank)) for bar in plain]
    shown, rest = _choose(bars)
    scale = Scale.of(mean.wall_ns)
    whole = "step" if analysis.steady else "capture"
    if leading:
        headline, lead = title(leading), lead_of(analysis, leading, mean.wall_ns, scale, whole)
    else:
        headline, lead = claim(mean.parts_ns, mean.overlap_ratio, scale, whole, analysis.thresholds)
    if unexplained := _unexplained(analysis, mean):
        lead = f"{lead} {unexplained}".strip() if "unexplained" not in headline else lead
    return Summary(
        job=_job(analysis),
        steps=_steps(analysis),
        whole=whole,
        scale=scale,
        mean=mean,
        bars=tuple(shown),
        rest=_rest(rest),
        causes=tuple(_lost_by_cause(analysis)),
        headline=headline,
        lead=lead,
        notes=tuple(notes(analysis, len(bars))),
    )


def steady_steps(analysis: Analysis, rank: Rank) -> list[Step]:
    """Return the steps of a rank that figures are quoted for."""
    wanted = set(analysis.steady.steps) if analysis.steady else set()
    return [step for step in rank.steps if step.step in wanted]


def told_steps(analysis: Analysis) -> set[int]:
    """Return the steps in which waiting can be told from transfer on any rank."""
    return {
        step.step
        for rank in analysis.ranks
        for step in rank.steps
        if step.caused_wait_ns is not None or "peer_wait" in step.exposed_comm_by_cause
    }


def families_of(steps: Sequence[Step], account: Account) -> dict[str, float]:
    """Split an account by family of cause, with the causes' shares as they are in ``steps``.

    Time whose cause no step tells counts as plain exposed communication, copy or idle.
    """
    totals = dict.fromkeys((family.key for family in FAMILIES), 0.0)
    totals["compute"] = float(account.compute_ns)
    totals["copy"] = float(account.exposed_copy_ns)
    for part_ns, default, causes in (
        (account.exposed_comm_ns, "comm", _by_family((s.exposed_comm_by_cause for s in steps), family_of_exposed)),
        (account.idle_ns, "idle", _by_family((s.idle_by_cause for s in steps), family_of_idle)),
    ):
        known = sum(causes.values())
        if not known:
            totals[default] += part_ns
        for family, ns in causes.items():
            totals[family] += part_ns * ns / known if known else 0.0
    return {key: ns for key, ns in totals.items() if ns > 0}


def lost_of(step: Step) -> Iterable[tuple[str, str, int]]:
    """Yield (family, cause, ns) of the time that a step of one rank loses."""
    for causes, family_of in (
        (step.exposed_comm_by_cause, family_of_exposed),
        (step.exposed_copy_by_cause, lambda _: "copy"),
        (step.idle_by_cause, family_of_idle),
    ):
        for cause, ns in causes.items():
            yield family_of(cause), cause, ns


def _unexplained(analysis: Analysis, mean: Bar) -> str:
    """Return how much of the exposed communication has no known cause, where that is enough to say it first."""
    limits = analysis.thresholds
    if mean.exposed_comm_ns < limits.warning_share * mean.wall_ns:
        return ""
    causes = [step.exposed_comm_by_cause for rank in analysis.ranks for step in steady_steps(analysis, rank)]
    known, unknown = sum(sum(each.values()) for each in causes), sum(each.get("unknown", 0) for each in causes)
    if not known or unknown < limits.headline_unexplained_share * known:
        return ""
    return f"Of the exposed communication {share(unknown, known)} unexplained."


def _lost_by_cause(analysis: Analysis) -> list[tuple[Family, str, float]]:
    steps = [step for rank in analysis.ranks for step in steady_steps(analysis, rank)]
    found: dict[tuple[str, str], int] = {}
    for step in steps:
        for family, cause, ns in lost_of(step):
            found[family, cause] = found.get((family, cause), 0) + ns
    families = {family.key: family for family in FAMILIES}
    by_size = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [(families[family], cause, ns / len(steps)) for (family, cause), ns in by_size]


def _by_family(maps: Iterable[dict[str, int]], family_of: Callable[[str], str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for causes in maps:
        for cause, ns in causes.items():
            family = family_of(cause)
            found[family] = found.get(family, 0) + ns
    return found


def _bar(rank: int | None, account: Account, steps: Sequence[Step], over: int) -> Bar:
    """Make a bar of a summed account: the mean over ``over`` steps or ranks."""
    return Bar(
        rank=rank,
        wall_ns=account.wall_ns / over,
        compute_ns=account.compute_ns / over,
        exposed_comm_ns=account.exposed_comm_ns / over,
        exposed_copy_ns=account.exposed_copy_ns / over,
        idle_ns=account.idle_ns / over,
        families={key: ns / over for key, ns in families_of(steps, account).items()},
        overlap_ratio=account.overlap_ratio,
    )


def _rank_bar(analysis: Analysis, rank: Rank) -> Bar | None:
    if not analysis.steady:
        return _bar(rank.rank, rank.totals, (), 1)
    steps = steady_steps(analysis, rank)
    if not steps:
        return None
    return _bar(rank.rank, total([step.account for step in steps]), steps, len(steps))


def _mean_bar(analysis: Analysis, bars: Sequence[Bar]) -> Bar:
    if analysis.steady:
        steps = [step for rank in analysis.ranks for step in steady_steps(analysis, rank)]
        return _bar(None, analysis.steady.account, steps, 1)
    return _bar(None, total([rank.totals for rank in analysis.ranks]), (), max(1, len(bars)))


def _choose(bars: Sequence[Bar]) -> tuple[list[Bar], list[Bar]]:
    """Return the bars to show and the rest: with many ranks the oddest and the median one, accused ranks first."""
    if len(bars) <= BARS_SHOWN:
        return list(bars), []
    medians = [statistics.median(bar.parts_ns[i] for bar in bars) for i in range(4)]
    distance = {id(bar): sum(abs(part - m) for part, m in zip(bar.parts_ns, medians, strict=True)) for bar in bars}
    by_oddness = sorted(bars, key=lambda bar: (bar.accused is None, -distance[id(bar)]))
    median = min(by_oddness[ODDEST_SHOWN:], key=lambda bar: distance[id(bar)])
    shown = {id(bar) for bar in by_oddness[:ODDEST_SHOWN]} | {id(median)}
    return [bar for bar in bars if id(bar) in shown], [bar for bar in bars if id(bar) not in shown]


def _rest(bars: Sequence[Bar]) -> str | None:
    if not bars:
        return None
    low, high = min(bar.wall_ns for bar in bars), max(bar.wall_ns for bar in bars)
    scale = Scale.of(high)
    overlaps = [bar.overlap_ratio for bar in bars if bar.overlap_ratio is not None]
    overlap = f", overlap {min(overlaps):.2f} to {max(overlaps):.2f}" if overlaps else ""
    low_text, high_text = scale.format(low), scale.with_unit(high)
    walls = high_text if scale.format(high) == low_text else f"{low_text} to {high_text}"
    return f"{plural(len(bars), 'more rank')}: {walls}{overlap}"


def stragglers_of(analysis: Analysis) -> set[int]:
    """Return the ranks that hold up the others; none where all of them do in turn, which singles out nobody."""
    ranks = {straggler.rank for straggler in analysis.stragglers}
    return ranks if len(ranks) < len(analysis.ranks) else set()


def _accused(analysis: Analysis, leading: Finding | None) -> dict[int | None, str]:
    """Return why a rank is marked, by rank."""
    found: dict[int | None, str] = {}
    if leading and len(leading.ranks) < len(analysis.ranks):
        found.update(dict.fromkeys(leading.ranks, clean(leading.rule, 12)))
    straggling = stragglers_of(analysis)
    found.update({s.rank: straggler_tag(s) for s in analysis.stragglers if s.rank in straggling})
    return found


def _job(analysis: Analysis) -> str:
    names = [clean(PurePath(capture.path).name, 60) for capture in analysis.captures]
    captures = names[0] if len(names) == 1 else plural(len(names), "capture")
    known = {clean(rank.device_name or "unknown", 60).removeprefix("NVIDIA ") for rank in analysis.ranks}
    devices = sorted(known - {"unknown"})
    gpus = f", {' and '.join(devices[:2])}" if devices else ""
    found = analysis.sharding
    sure = found is not None and (found.confidence or 0) > SURE and found.strategy not in NO_STRATEGY
    strategy = f", {found.strategy}" if found and sure else ""
    return f"{captures} · {plural(len(analysis.ranks), 'rank')}{gpus}{strategy}"


def _steps(analysis: Analysis) -> str | None:
    if not analysis.steady:
        return None
    every = {step.step for rank in analysis.ranks for step in rank.steps}
    noun = "step" if len(analysis.steady.steps) == 1 else "steps"
    return f"{noun} {runs(analysis.steady.steps)} ({len(analysis.steady.steps)} of {len(every)})"
