"""The verdict in a sentence, and what limits it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from tracekit.config import Thresholds
from tracekit.report import hang_views
from tracekit.report.gain import gpu_hours_a_day, hours
from tracekit.report.words import Scale, add_up, clean, duration, plural, sentence, share
from tracekit.results import Analysis, Confidence, Finding, Hang, Severity, Straggler
from tracekit.rules.hang_words import claim as hang_claim
from tracekit.runs import runs

NO_STEPS = (
    "No steps in this capture. Figures are for the whole of it. "
    'Wrap the loop body in nvtx.annotate("step"), or name a range with --step-marker.'
)
ONE_RANK = (
    "One rank: waiting for peers cannot be told from transfer. "
    "Analyze the other ranks' captures together with this one."
)

_IS = {
    "exposed communication": "pass with communication alone",
    "exposed copies": "pass with copies alone",
    "idle": "pass with nothing running",
}

_RESIDUES = ("TK100", "TK415")
"""What no rule explains: they lead only where nothing named can."""
_STRAGGLER_RULES = "TK2"
_HANG_RULES = "TK3"
_TAGS = {
    "slow_compute": "slow",
    "host_stall": "stalls",
    "data": "data",
    "late_launch": "late",
    "sequence_length": "long input",
    "stage": "stage",
    "link": "link",
}
UNDECIDED = "undecided"
_GROUP = "stage"


def headline_finding(analysis: Analysis, largest_loss_ns: float) -> Finding | None:
    """Return the finding to lead with: the first serious one not of low confidence, a named cause before a residue.

    None where there is none, and where all findings together leave much of the largest loss unexplained: then that loss
    is the news. A finding that is not about time, such as a hang, always leads.
    """
    serious = [f for f in analysis.findings if f.severity is not Severity.INFO and f.confidence is not Confidence.LOW]
    if not serious:
        return None
    thresholds = analysis.thresholds
    explained = sum(finding.cost_ns or 0 for finding in analysis.findings)
    first = serious[0]
    if first.cost_ns is not None and explained < thresholds.headline_explained_share * largest_loss_ns:
        return None
    named = next((finding for finding in serious if finding.rule not in _RESIDUES), first)
    return named if (named.saves_ns or 0) >= thresholds.headline_named_share * (first.saves_ns or 0) else first


def straggler_tag(straggler: Straggler) -> str:
    """Return in a word how a rank holds up the others."""
    undecided = straggler.verdict == UNDECIDED and straggler.cause != _GROUP
    return UNDECIDED if undecided else _TAGS.get(straggler.cause, "late")


def lead_of(analysis: Analysis, finding: Finding, wall_ns: float, scale: Scale, whole: str) -> str:
    """Return the sentences below a finding's claim: for stragglers why the others wait, then what it costs."""
    if analysis.hang is not None and finding.cost_ns is None and finding.rule.startswith(_HANG_RULES):
        return hang_lead(analysis.hang)
    why = _reason(analysis, finding)
    if why and finding.gain_ns is not None and all(s.verdict == "persistent" for s in _blamed(analysis, finding)):
        whose = "its" if len(finding.ranks) == 1 else "their"
        why = f"{why.removesuffix('.')}; at {whose} peers' pace {scale.with_unit(wall_ns - finding.gain_ns)} a {whole}."
        cost = _cost(replace(finding, gain_ns=None), wall_ns, scale, whole, subject="The waiting")
    else:
        cost = _cost(finding, wall_ns, scale, whole, subject="The waiting" if why else "It")
    return " ".join(part for part in (why, cost, _a_day(analysis, finding, wall_ns)) if part)


def _a_day(analysis: Analysis, finding: Finding, wall_ns: float) -> str:
    """Return what a finding costs a job that runs all day."""
    if not finding.saves_ns or not analysis.steady:  # the start of a program says nothing of its day
        return ""
    lost, whole = (gpu_hours_a_day(analysis, ns, wall_ns) for ns in (finding.saves_ns, wall_ns))
    says = "That is" if finding.gain_ns is None else "Fixing it saves"
    return f"{says} {hours(lost)} of {hours(whole)} GPU-hours a day."


def hang_lead(hang: Hang) -> str:
    """Return where those stopped that the others wait for, as far as that is told."""
    who = hang_views.ranks_in_words(hang.culprits or hang.behind_ranks or hang.waiting_ranks)
    where = [("step", hang.step), ("module", hang.module)]
    told = [f"{label} {clean(str(value), 80)}" for label, value in where if value is not None]
    idle = [a.activity.idle_ns for a in hang.last_activity if a.activity.idle_ns is not None]
    still = f" Nothing has happened for {duration(min(idle))}." if idle else ""
    stopped = sentence(f"{who} stopped in {', '.join(told)}") if told else ""
    return (stopped[:1].upper() + stopped[1:] + still).strip()


def _blamed(analysis: Analysis, finding: Finding) -> list[Straggler]:
    return [s for s in analysis.stragglers if s.rank in finding.ranks]


def _reason(analysis: Analysis, finding: Finding) -> str:
    mine = _blamed(analysis, finding)
    if not finding.rule.startswith(_STRAGGLER_RULES) or not mine or len(mine) != len(finding.ranks):
        return ""
    if len(mine) > 1:
        causing = share(sum(s.caused_share for s in mine), 1)
        ratios = [s.kernel_ratio for s in mine if s.kernel_ratio is not None and s.verdict == "persistent"]
        if len(ratios) == len(mine) and all(s.cause == "slow_compute" for s in mine):
            return f"Their kernels take {_range(ratios)}× as long as elsewhere."
        if mine[0].verdict != "rotating":
            return f"They cause {causing} of all waiting."
        return f"They cause {causing} of all waiting, none of them more than {share(mine[0].caused_share, 1)}."
    return _reason_of_one(mine[0])


def _range(ratios: list[float]) -> str:
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


def _reason_of_one(straggler: Straggler) -> str:
    if straggler.cause == "slow_compute" and straggler.kernel_ratio is not None:
        return f"Its kernels take {straggler.kernel_ratio:.2f}× as long as elsewhere."
    if straggler.cause in {"slow_compute", "sequence_length"}:
        return f"It computes {straggler.compute_ratio:.2f}× as long as its peers."
    if straggler.cause in {"host_stall", "data"} and straggler.idle_excess_ns is not None:
        return f"Its GPU is idle for {duration(straggler.idle_excess_ns)} a step longer than its peers'."
    return f"It causes {share(straggler.caused_share, 1)} of all waiting."


def claim(
    parts_ns: tuple[float, float, float, float],
    overlap_ratio: float | None,
    scale: Scale,
    whole: str,
    thresholds: Thresholds,
) -> tuple[str, str]:
    """Return headline and lead where no finding leads: the largest loss, or that nothing stands out.

    ``parts_ns`` are compute, exposed communication, exposed copy and idle; ``whole`` is ``step`` or ``capture``.
    """
    wall_ns = sum(parts_ns)
    shown = dict(zip(_IS, add_up(parts_ns, scale)[1:], strict=True))
    lost = dict(zip(_IS, parts_ns[1:], strict=True))
    name, most = max(lost.items(), key=lambda item: item[1])
    if not wall_ns or most < thresholds.warning_share * wall_ns:
        headline = f"Nothing stands out: {share(parts_ns[0], wall_ns)} of the {whole} is compute."
    else:
        headline = f"{share(most, wall_ns)} of {'a step' if whole == 'step' else 'the capture'} is {name}."
    if overlap_ratio is None:
        hidden = "There is no communication."
    elif overlap_ratio < 0.005:
        hidden = "Compute hides none of the communication."
    else:
        hidden = f"Compute hides {share(overlap_ratio, 1)} of the communication."
    return headline, f"{shown[name]} of {scale.with_unit(wall_ns)} {_IS[name]}. {hidden}"


def _cost(finding: Finding, wall_ns: float, scale: Scale, whole: str, *, subject: str) -> str:
    """Return what a finding costs, and the step without it where a replay tells, in words; never the two mixed."""
    sentences = []
    if finding.cost_ns is not None:
        part = share(finding.cost_ns, wall_ns)
        of = (
            f"of {scale.with_unit(wall_ns)} a step"
            if whole == "step"
            else f"of the capture's {scale.with_unit(wall_ns)}"
        )
        sentences.append(f"{subject} costs {scale.format(finding.cost_ns)} {of}, {part}.")
    if finding.gain_ns is not None:
        name = "a step" if whole == "step" else "the capture"
        sentences.append(f"Without it {name} takes {scale.with_unit(wall_ns - finding.gain_ns)}.")
    return " ".join(sentences)


def title(finding: Finding) -> str:
    """Return a finding's claim as a sentence."""
    return sentence(clean(finding.title, 200))


def _undecided(analysis: Analysis) -> Iterable[str]:
    """Yield whom the others wait for where it is not clear that a rank is to blame."""
    found = [s for s in analysis.stragglers if s.verdict == UNDECIDED]
    if not found:
        return
    who = runs(s.rank for s in found)
    causing = share(sum(s.caused_share for s in found), 1)
    costs = duration(sum(s.wait_caused_ns for s in found))
    if len(found) == 1:
        yield f"Rank {who} causes {causing} of all waiting, {costs} a step; whether it is a straggler is undecided."
    elif all(s.cause == _GROUP for s in found):
        yield (
            f"Ranks {who} cause {causing} of all waiting, {costs} a step: a stage or a group with more work, "
            "and no single rank."
        )
    else:
        yield f"Ranks {who} cause {causing} of all waiting, {costs} a step; whether they are stragglers is undecided."


def notes(analysis: Analysis, ranks_with_steps: int) -> Iterable[str]:
    """Yield what limits the figures, most limiting first."""
    ranks = analysis.ranks
    if analysis.hang is not None and analysis.hang.is_hang:
        yield "The figures are of the time before the job stood still."
    elif analysis.hang is not None:
        yield f"The captures end as in a hang. {sentence(clean(hang_claim(analysis.hang), 400))}"
    if analysis.left_out:
        shown = ", ".join(f"{clean(PurePath(e.path).name)} ({clean(e.reason, 80)})" for e in analysis.left_out[:3])
        more = f" and {len(analysis.left_out) - 3} more" if len(analysis.left_out) > 3 else ""
        yield f"Left out, and in no figure: {shown}{more}."
    if not analysis.steady:
        yield NO_STEPS
    elif ranks_with_steps < len(ranks):
        yield f"{plural(len(ranks) - ranks_with_steps, 'rank')} without a steady step: not in the bars."
    if len(ranks) == 1 and ranks[0].totals.comm_ns:
        yield ONE_RANK
    elif analysis.not_captured and len(ranks) > 1:
        who = f"{'Rank' if len(analysis.not_captured) == 1 else 'Ranks'} {runs(analysis.not_captured)}"
        yield f"{who} of {analysis.world_size} not captured: what they cause shows as transfer, waits are lower bounds."
    yield from _undecided(analysis)
    methods = {rank.clock.method for rank in ranks}
    if len(ranks) > 1 and None in methods:
        yield "The captures' clocks cannot be aligned: each rank is shown from its own start."
    elif len(ranks) > 1 and "session_start" in methods:
        widest = max((rank.clock.uncertainty_ns or 0 for rank in ranks), default=0)
        within = f" (± {duration(widest)})" if widest else ""
        yield f"Clocks are aligned by when each capture started{within}: compare durations across ranks, not times."
    elif len(ranks) > 1 and "not_aligned" in methods:
        yield "Clocks are not aligned, as asked: compare durations across ranks, not times."
    opaque_ns = sum(rank.opaque_ns for rank in ranks)
    if opaque_ns:
        part = share(opaque_ns, sum(rank.totals.compute_ns for rank in ranks))
        yield f"CUDA graphs traced as a whole are {part} of compute: content unknown, overlap is an upper bound."
