"""Two analyses held against each other: what changed, by how much, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from tracekit.comparison import (
    Change,
    CollectiveChange,
    CollectiveFigures,
    Comparison,
    FindingChange,
    RunFigures,
    StragglerChange,
    Term,
    Verdict,
)
from tracekit.config import DEFAULT, Thresholds
from tracekit.metrics.accounting import PARTS, apportion, total
from tracekit.metrics.shift import shift
from tracekit.results import Account, Analysis, Collective, Finding, Step, Straggler

CAUSES: dict[str, Callable[[Step], dict[str, int]]] = {
    "exposed_comm_ns": lambda step: step.exposed_comm_by_cause,
    "exposed_copy_ns": lambda step: step.exposed_copy_by_cause,
    "idle_ns": lambda step: step.idle_by_cause,
}
"""Where the causes of a term are."""

Samples = tuple[tuple[Step, ...], ...]
"""The steady steps in order, each with its ranks' views of it."""


def compare(
    base: Analysis, new: Analysis, *, names: tuple[str, str] = ("base", "new"), thresholds: Thresholds = DEFAULT
) -> Comparison:
    """Compare two runs, each with all its ranks.

    A step, mean over ranks, is one sample: ranks wait for one another, so they are not independent. How the steps of
    one run spread does not tell how runs do, for which ``same_run_share`` of the step is allowed.
    """
    before, after = _samples(base), _samples(new)
    walls = [run.steady.account.wall_ns for run in (base, new) if run.steady]
    floor_ns = thresholds.same_run_share * max(walls, default=0)
    judge = _Judge(before, after, floor_ns, thresholds.compare_confidence)
    both = base.steady is not None and new.steady is not None
    return Comparison(
        base=figures_of(base, names[0]),
        new=figures_of(new, names[1]),
        confidence=thresholds.compare_confidence,
        floor_ns=floor_ns,
        step_time=judge.change("step_time_ns", _wall(base), _wall(new), lambda step: step.account.wall_ns),
        terms=tuple(_term(name, base, new, judge) for name in PARTS) if both else (),
        figures=_figures(base, new),
        collectives=_collectives(base, new),
        bytes_per_step=_bytes_per_step(base, new),
        findings=_findings(base, new),
        stragglers=_stragglers(base, new),
        notes=tuple(_notes(base, new, names)),
        unlike=tuple(_unlike(base, new)),
    )


class _Judge:
    """Tells differences from noise, from the same steps for every figure."""

    def __init__(self, base: Samples, new: Samples, floor_ns: float, confidence: float) -> None:
        self._samples = base, new
        self._floor_ns = floor_ns
        self._confidence = confidence

    def change(self, metric: str, base: float | None, new: float | None, value: Callable[[Step], int]) -> Change:
        """A figure in ns, with what its values in each step say of the difference."""
        if not all(self._samples):
            return Change(metric=metric, base=base, new=new)
        before, after = ([_mean(map(value, ranks)) for ranks in steps] for steps in self._samples)
        found = shift(before, after, self._confidence)
        if found is None:
            return Change(metric=metric, base=base, new=new, verdict=Verdict.TOO_FEW_STEPS)
        differs = (found.low > 0 or found.high < 0) and abs(found.estimate) > self._floor_ns
        return Change(
            metric=metric,
            base=base,
            new=new,
            verdict=Verdict.DIFFERS if differs else Verdict.WITHIN_NOISE,
            low=found.low,
            high=found.high,
            shift=found.estimate,
        )


def _samples(run: Analysis) -> Samples:
    steady = run.steady.steps if run.steady else ()
    by_number: dict[int, list[Step]] = {number: [] for number in steady}
    for rank in run.ranks:
        for step in rank.steps:
            if step.step in by_number:
                by_number[step.step].append(step)
    return tuple(tuple(ranks) for ranks in by_number.values() if ranks)


def _mean(values: Iterable[int]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _wall(run: Analysis) -> int | None:
    return run.steady.account.wall_ns if run.steady else None


def _term(name: str, base: Analysis, new: Analysis, judge: _Judge) -> Term:
    def part(step: Step) -> int:
        return int(getattr(step.account, name))

    assert base.steady is not None
    assert new.steady is not None
    change = judge.change(name, getattr(base.steady.account, name), getattr(new.steady.account, name), part)
    if name not in CAUSES:
        return Term(change=change, causes=())
    before, after = _causes(base, name), _causes(new, name)
    if before is None or after is None:  # a run that tells no causes is no run without them
        return Term(change=change, causes=())
    changes = [
        judge.change(cause, before.get(cause, 0), after.get(cause, 0), _of_cause(name, cause))
        for cause in dict.fromkeys([*before, *after])
    ]
    return Term(change=change, causes=tuple(sorted(changes, key=lambda c: (-abs(c.difference or 0), c.metric))))


def _of_cause(term: str, cause: str) -> Callable[[Step], int]:
    return lambda step: CAUSES[term](step).get(cause, 0)


def _causes(run: Analysis, term: str) -> dict[str, int] | None:
    """ns a step by cause, adding up to the term; None where steps do not tell."""
    assert run.steady is not None
    steps = [step for ranks in _samples(run) for step in ranks]
    sums: dict[str, int] = {}
    for step in steps:
        for cause, ns in CAUSES[term](step).items():
            sums[cause] = sums.get(cause, 0) + ns
    whole = getattr(run.steady.account, term)
    if sum(sums.values()) != sum(getattr(step.account, term) for step in steps):
        return None
    return dict(zip(sums, apportion(list(sums.values()), len(steps), whole), strict=True))


def figures_of(run: Analysis, name: str) -> RunFigures:
    """The figures that several runs are listed with."""
    account = _account(run)
    steady, used = run.steady, run.efficiency
    return RunFigures(
        name=name,
        strategy=run.sharding.strategy if run.sharding else None,
        ranks=len(run.ranks),
        world_size=run.world_size,
        steps=len(steady.steps) if steady else 0,
        step_time_ns=steady.account.wall_ns if steady else None,
        median_ns=steady.step_time_ns if steady else None,
        overlap_ratio=account.overlap_ratio,
        tokens_per_s=used.tokens_per_s if used else None,
        mfu=used.mfu if used else None,
        peak_memory_bytes=run.memory.peak_bytes if run.memory else None,
    )


def _account(run: Analysis) -> Account:
    return run.steady.account if run.steady else total(rank.totals for rank in run.ranks)


def _figures(base: Analysis, new: Analysis) -> tuple[Change, ...]:
    before, after = figures_of(base, ""), figures_of(new, "")
    p95 = [run.steady.step_time_p95_ns if run.steady else None for run in (base, new)]
    return (
        Change(metric="overlap_ratio", base=before.overlap_ratio, new=after.overlap_ratio),
        Change(metric="step_time_p95_ns", base=p95[0], new=p95[1]),
        Change(metric="tokens_per_s", base=before.tokens_per_s, new=after.tokens_per_s),
        Change(metric="mfu", base=before.mfu, new=after.mfu),
    )


def _collectives(base: Analysis, new: Analysis) -> tuple[CollectiveChange, ...]:
    """By op and role: hashes and ranks of communicators are others in each run."""
    before, after = _by_role(base), _by_role(new)
    found = [
        CollectiveChange(op=op, role=role, base=before.get((op, role)), new=after.get((op, role)))
        for op, role in dict.fromkeys([*before, *after])
    ]
    return tuple(sorted(found, key=lambda c: (-_most_exposed(c), c.op, c.role)))


def _most_exposed(row: CollectiveChange) -> int:
    return max((side.exposed_per_step_ns or 0) for side in (row.base, row.new) if side)


def _by_role(run: Analysis) -> dict[tuple[str, str], CollectiveFigures]:
    everyone = len(run.ranks)

    def key(row: Collective) -> tuple[str, str]:
        return row.op, "all ranks" if len(row.ranks) == everyone else f"groups of {len(row.ranks)}"

    rows = sorted(run.collectives, key=key)
    return {k: _together(list(group)) for k, group in groupby(rows, key)}


def _together(rows: Sequence[Collective]) -> CollectiveFigures:
    exposed = [row.exposed_per_step_ns for row in rows if row.exposed_per_step_ns is not None]
    sizes, transfers = _weighted(rows, lambda row: row.bytes), _weighted(rows, lambda row: row.transfer_ns)
    return CollectiveFigures(
        communicators=len(rows),
        count=sum(row.count for row in rows),
        bytes=int(sizes) if sizes is not None else None,
        transfer_ns=int(transfers) if transfers is not None else None,
        busbw_gbps=_weighted(rows, lambda row: row.busbw_gbps),
        exposed_per_step_ns=sum(exposed) if len(exposed) == len(rows) else None,
    )


def _weighted(rows: Sequence[Collective], value: Callable[[Collective], float | None]) -> float | None:
    """Median of the communicators' medians by their number of collectives; None if one of them is unknown."""
    known = sorted((found, row.count) for row in rows if (found := value(row)) is not None)
    if len(known) < len(rows):
        return None
    half, seen = sum(count for _, count in known) / 2, 0
    for found, count in known:
        seen += count
        if seen >= half:
            return found
    return None


def _bytes_per_step(base: Analysis, new: Analysis) -> tuple[Change, ...]:
    before, after = ({} if run.sharding is None else run.sharding.bytes_per_step for run in (base, new))
    if base.sharding is None or new.sharding is None:
        return ()
    return tuple(
        Change(metric=op, base=before.get(op, 0), new=after.get(op, 0)) for op in dict.fromkeys([*before, *after])
    )


def _findings(base: Analysis, new: Analysis) -> tuple[FindingChange, ...]:
    before, after = _by_rule(base.findings), _by_rule(new.findings)
    changes = []
    for rule in dict.fromkeys([*before, *after]):
        mine, others = before.get(rule, []), after.get(rule, [])
        status = "stayed" if mine and others else "came" if others else "went"
        if not mine and not _checked(base, rule):
            status = "not_checked_in_base"
        elif not others and not _checked(new, rule):
            status = "not_checked_in_new"
        title = (others or mine)[0].title
        costs = _cost(mine), _cost(others)
        changes.append(
            FindingChange(rule=rule, title=title, base_cost_ns=costs[0], new_cost_ns=costs[1], status=status)
        )
    return tuple(sorted(changes, key=lambda c: (-max(c.base_cost_ns or 0, c.new_cost_ns or 0), c.rule)))


def _by_rule(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.rule, []).append(finding)
    return found


def _checked(run: Analysis, rule: str) -> bool:
    return run.sharding is not None and all(skipped.rule != rule for skipped in run.skipped_rules)


def _cost(findings: Sequence[Finding]) -> int | None:
    costs = [finding.cost_ns for finding in findings if finding.cost_ns is not None]
    return sum(costs) if costs else None


def _stragglers(base: Analysis, new: Analysis) -> tuple[StragglerChange, ...]:
    before, after = ({row.rank: _words(row) for row in run.stragglers} for run in (base, new))
    return tuple(
        StragglerChange(rank=rank, base=before.get(rank), new=after.get(rank)) for rank in sorted({*before, *after})
    )


def _words(row: Straggler) -> str:
    return f"{row.verdict}, {row.cause}"


def _notes(base: Analysis, new: Analysis, names: tuple[str, str]) -> Iterable[str]:
    """Yield what keeps the runs from being two runs of one job, most serious first."""
    runs = list(zip(names, (base, new), strict=True))
    for name in dict.fromkeys(name for name, run in runs if run.steady is None):
        yield f"{name} has no steps: its times cannot be compared, only ratios, collectives and findings."
    for what, value in JOB_FACTS.items():
        yield from _differing(what, runs, value)
    yield from _differing("GPU", runs, _devices)
    yield from _differing("version of the profiler", runs, _versions)
    yield from _differing("sharding", runs, lambda run: run.sharding.strategy if run.sharding else None)
    for name, run in runs:
        if not _account(run).comm_ns:
            yield f"{name} has no communication: its overlap ratio is unknown, not 0."
        elif not _tells_waits(run) and any(map(_tells_waits, (base, new))):
            yield f"{name} does not tell waiting from transfer: peer_wait there is in the other causes."
        if run.sharding is None:
            yield f"{name} was analyzed without rules: what it lacks in findings says nothing."


def _differing(
    what: str, runs: Sequence[tuple[str, Analysis]], value: Callable[[Analysis], int | str | None]
) -> Iterable[str]:
    """Yield a note where a fact is known of both runs and differs."""
    found = {name: value(run) for name, run in runs}
    if None not in found.values() and len(set(found.values())) > 1:
        yield f"Not the same {what}: " + ", ".join(f"{name} {fact}" for name, fact in found.items()) + "."


def _unlike(base: Analysis, new: Analysis) -> Iterable[str]:
    """Yield in what the runs are different jobs: facts that are known of both."""
    for what, value in JOB_FACTS.items():
        before, after = value(base), value(new)
        if before is not None and after is not None and before != after:
            yield what


def _tokens(run: Analysis) -> int | None:
    """Of a step, over all GPUs."""
    tokens = run.efficiency.tokens_per_step if run.efficiency else None
    return None if tokens is None else round(tokens)


JOB_FACTS: dict[str, Callable[[Analysis], int | None]] = {
    "tokens a step": _tokens,
    "number of ranks": lambda run: run.world_size or len(run.ranks),
    "number of parameters": lambda run: run.sharding.parameters if run.sharding else None,
    "FLOPs a token": lambda run: run.efficiency.flops_per_token if run.efficiency else None,
}
"""What makes one job: where one of these differs, step times do not compare."""


def _versions(run: Analysis) -> str | None:
    known = {capture.nsys_version for capture in run.captures} - {None}
    return " and ".join(sorted(map(str, known))) or None


def _devices(run: Analysis) -> str | None:
    names = {rank.device_name for rank in run.ranks} - {None}
    return " and ".join(sorted(map(str, names))) or None


def _tells_waits(run: Analysis) -> bool:
    return any(step.caused_wait_ns is not None for rank in run.ranks for step in rank.steps)
