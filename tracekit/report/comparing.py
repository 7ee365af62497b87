"""A comparison in words and tables, which the terminal and Markdown both show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tracekit.comparison import Change, CollectiveFigures, Comparison, RunFigures, Term, Verdict
from tracekit.report.theory import NO_STRATEGY, rate
from tracekit.report.words import Scale, add_up, clean, duration, plural, size

UNKNOWN = "–"
TOLD_SHARE = 0.2
"""A term is named as what changed the step if it makes up this share of the change."""
MOSTLY_SHARE = 0.5
"""A cause is named if it makes up this share of its term's change."""
CAUSE_SHARE = 0.001
"""Causes that change by less than this share of the step are not listed."""
LONGEST_STRATEGY = 13
NAMES = {
    "step_time_ns": "step",
    "compute_ns": "compute",
    "exposed_comm_ns": "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "idle_ns": "idle",
    "overlap_ratio": "overlap ratio",
    "step_time_p95_ns": "p95 step time",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
}
_STATUS = {
    "came": "new",
    "went": "gone",
    "stayed": "both",
    "not_checked_in_base": "base did not check",
    "not_checked_in_new": "new did not check",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One table; the first column is text, the others are figures."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def fine_scale(whole_ns: float) -> Scale:
    """The unit of a step, with one decimal more than elsewhere: differences are small."""
    scale = Scale.of(whole_ns)
    return Scale(scale.unit, scale.unit_ns, scale.decimals + (scale.decimals < 3))


def signed(value: float, text: Callable[[float], str]) -> str:
    """A difference with its sign; none where it rounds to nothing."""
    shown = text(abs(value))
    return shown if not any(digit in "123456789" for digit in shown) else f"{'+' if value > 0 else '−'}{shown}"


def percent(part: float, whole: float) -> str:
    """A share with one decimal, without a sign."""
    return f"{100 * abs(part) / whole:.1f} %" if whole else UNKNOWN


def _shown(comparison: Comparison, scale: Scale) -> dict[str, tuple[float, float]]:
    """(base, new) of the step and its terms in ns, rounded as they are shown: columns and differences then add up."""
    terms = [term.change for term in comparison.terms]
    base, new = (
        [float(text) * scale.unit_ns for text in add_up([value or 0 for value in values], scale)]
        for values in ([change.base for change in terms], [change.new for change in terms])
    )
    found = dict(zip([change.metric for change in terms], zip(base, new, strict=True), strict=True))
    return {**found, comparison.step_time.metric: (sum(base), sum(new))}


def _scale(comparison: Comparison) -> Scale:
    return fine_scale(max(comparison.base.step_time_ns or 0, comparison.new.step_time_ns or 0))


def sentence(comparison: Comparison) -> str:
    """What happened to the step and why, in one sentence; of different jobs only what their throughput is."""
    step, scale = comparison.step_time, _scale(comparison)
    if comparison.unlike:
        return _of_unlike_jobs(comparison)
    if step.base is None or step.new is None:
        without = [clean(run.name, 60) for run in (comparison.base, comparison.new) if not run.steps]
        return "The step times cannot be compared: " + " and ".join(
            f"{name} has no steps" for name in dict.fromkeys(without)
        )
    shown = _shown(comparison, scale)
    before, after = shown[step.metric]
    difference = after - before
    if abs(difference) <= comparison.floor_ns:
        moved = [term for term in comparison.terms if term.change.verdict is Verdict.DIFFERS]
        inside = "; inside it " + "; ".join(_contribution(term, shown, scale) for term in moved) if moved else ""
        return f"The step takes as long as before, {scale.format(before)} and {scale.with_unit(after)}{inside}"
    direction = "longer" if difference > 0 else "shorter"
    direction += " on average, within the noise" if step.verdict is Verdict.WITHIN_NOISE else ""
    told = _told(comparison.terms, shown, difference)
    why = ": " + "; ".join(_contribution(term, shown, scale) for term in told) if told else ""
    return f"The step is {scale.with_unit(abs(difference))} ({percent(difference, before)}) {direction}{why}"


def _of_unlike_jobs(comparison: Comparison) -> str:
    """Tokens a second, which compare whatever the steps hold, and in what the jobs differ."""
    differ = f"not the same {' and '.join(comparison.unlike)}"
    runs = comparison.base, comparison.new
    rates = [run.tokens_per_s for run in runs]
    if rates[0] is None or rates[1] is None:
        return f"Two different jobs ({differ}): their step times do not compare"
    a_gpu = [rate(each / (run.world_size or run.ranks)) for each, run in zip(rates, runs, strict=True) if each]
    per_gpu = f", {' and '.join(a_gpu)} a GPU" if "number of ranks" in comparison.unlike else ""
    return f"Throughput is {rate(rates[0])} and {rate(rates[1])} tokens/s{per_gpu}, of two different jobs ({differ})"


def _told(terms: Sequence[Term], shown: dict[str, tuple[float, float]], difference: float) -> list[Term]:
    """The terms that make up most of a change, largest first."""
    shares = {term.change.metric: _moved(term, shown) / difference for term in terms}
    told = [term for term in terms if shares[term.change.metric] >= TOLD_SHARE]
    return sorted(told, key=lambda term: -shares[term.change.metric])[:2]


def _moved(term: Term, shown: dict[str, tuple[float, float]]) -> float:
    base, new = shown[term.change.metric]
    return new - base


def _contribution(term: Term, shown: dict[str, tuple[float, float]], scale: Scale) -> str:
    change = _moved(term, shown)
    text = f"{NAMES[term.change.metric]} {signed(change, scale.with_unit)}"
    shares = [((cause.difference or 0) / change, cause.metric) for cause in term.causes] if change else []
    most, name = max(shares, default=(0.0, ""))
    return f"{text}, mostly {clean(name, 40)}" if most >= MOSTLY_SHARE else text


def certainty(comparison: Comparison) -> str:
    """How sure the step's difference is, in one sentence."""
    step, scale = comparison.step_time, _scale(comparison)
    if comparison.unlike:
        return ""
    counts = f"{comparison.base.steps} and {plural(comparison.new.steps, 'step')}"
    if step.verdict is Verdict.TOO_FEW_STEPS:
        return f"{counts} are too few to tell a difference from noise."
    if step.low is None or step.high is None:
        return ""
    low, high = signed(step.low, scale.format), signed(step.high, scale.with_unit)
    interval = f"{round(100 * comparison.confidence)} % interval {low} to {high}"
    if step.verdict is Verdict.DIFFERS:
        return f"That is more than noise ({counts}; {interval})."
    if step.low <= 0 <= step.high:
        return f"A typical step differs by no more than steps do among themselves ({counts}; {interval})."
    floor = scale.with_unit(comparison.floor_ns)
    return f"Steps tell a difference ({counts}; {interval}), but runs of one job differ by up to {floor}."


def run_words(run: RunFigures) -> str:
    """A run: its name, ranks, strategy and steps."""
    strategy = f", {clean(run.strategy, 40)}" if run.strategy and run.strategy not in NO_STRATEGY else ""
    steps = plural(run.steps, "steady step") if run.steps else "no steps"
    return f"{clean(run.name, 60)}: {plural(run.ranks, 'rank')}{strategy}, {steps}"


def sections(comparison: Comparison, *, everything: bool) -> Iterator[Section]:
    """Yield the tables that have rows; with ``everything`` causes of no importance too."""
    found = (
        _throughput(comparison),
        _times(comparison, everything),
        _figures(comparison),
        _collectives(comparison),
        _findings(comparison),
    )
    yield from (section for section in (*found, _stragglers(comparison)) if section.rows)


def _throughput(comparison: Comparison) -> Section:
    """What leads where it is known: tokens/s, the one figure that tells two runs apart whatever a step holds."""
    rows = [
        _figure(change, NAMES[change.metric], _FORMATS[change.metric])
        for change in comparison.figures
        if change.metric == "tokens_per_s"
    ]
    return Section(("Throughput", "base", "new", "change"), tuple(row for row in rows if UNKNOWN not in row[1:3]))


def _times(comparison: Comparison, everything: bool) -> Section:
    scale, rows = _scale(comparison), []
    whole = comparison.step_time.base or 0

    shown = _shown(comparison, scale)
    tick = scale.tick_ns

    def row(change: Change, name: str) -> tuple[str, ...]:
        rounded = [round((value or 0) / tick) * tick for value in (change.base, change.new)]
        base, new = shown.get(change.metric, rounded)
        part = signed(new - base, lambda ns: f"{100 * ns / whole:.1f} %") if whole else UNKNOWN
        cells = (scale.format(base), scale.format(new), signed(new - base, scale.format), part)
        return (name, *cells, _noise(change, scale))

    if comparison.terms:
        rows.append(row(comparison.step_time, "step"))
    for term in comparison.terms:
        rows.append(row(term.change, "  " + NAMES[term.change.metric].replace("communication", "comm")))
        rows += [
            row(cause, f"    {clean(cause.metric, 40)}")
            for cause in term.causes
            if everything or abs(cause.difference or 0) >= CAUSE_SHARE * whole
        ]
    return Section((f"A step, {scale.unit}", "base", "new", "change", "of step", "beyond noise"), tuple(rows))


def _noise(change: Change, scale: Scale) -> str:
    if change.verdict is Verdict.DIFFERS and change.low is not None and change.high is not None:
        return f"{signed(change.low, scale.format)} to {signed(change.high, scale.format)}"
    return {Verdict.WITHIN_NOISE: "no", Verdict.TOO_FEW_STEPS: "cannot tell"}.get(
        change.verdict or Verdict.DIFFERS, UNKNOWN
    )


_FORMATS: dict[str, Callable[[float], str]] = {
    "overlap_ratio": lambda value: f"{value:.2f}",
    "step_time_p95_ns": duration,
    "tokens_per_s": rate,
    "mfu": lambda value: f"{100 * value:.1f} %",
}


def _figures(comparison: Comparison) -> Section:
    leading = {row[0] for row in _throughput(comparison).rows}
    rows = [
        _figure(change, NAMES[change.metric], _FORMATS[change.metric])
        for change in comparison.figures
        if NAMES[change.metric] not in leading
    ]
    rows += [
        _figure(change, f"{change.metric.replace('_', '-')} bytes a step", size) for change in comparison.bytes_per_step
    ]
    return Section(("", "base", "new", "change"), tuple(row for row in rows if row[1:3] != (UNKNOWN, UNKNOWN)))


def _figure(change: Change, name: str, text: Callable[[float], str]) -> tuple[str, ...]:
    cells = tuple(UNKNOWN if value is None else text(value) for value in (change.base, change.new))
    return (name, *cells, UNKNOWN if change.difference is None else signed(change.difference, text))


def _collectives(comparison: Comparison) -> Section:
    rows = []
    for row in comparison.collectives:
        pairs = [
            _pair(row.base, row.new, lambda side: side.transfer_ns, duration),
            _pair(row.base, row.new, lambda side: side.busbw_gbps, lambda value: f"{value:.0f}"),
            _pair(row.base, row.new, lambda side: side.bytes, size),
            _pair(row.base, row.new, lambda side: side.count, lambda value: f"{value:.0f}"),
        ]
        rows.append((f"{row.op.replace('_', '-')}, {row.role}", *pairs))
    return Section(("Collectives, base → new", "transfer", "bus GB/s", "message", "in all"), tuple(rows))


def _pair(
    base: CollectiveFigures | None,
    new: CollectiveFigures | None,
    value: Callable[[CollectiveFigures], float | None],
    text: Callable[[float], str],
) -> str:
    """``base → new``; once where both show the same, a dash for a run that has none."""
    cells = []
    for side in (base, new):
        found = None if side is None else value(side)
        cells.append(UNKNOWN if found is None else text(found))
    return cells[0] if cells[0] == cells[1] else " → ".join(cells)


def _findings(comparison: Comparison) -> Section:
    scale = _scale(comparison)
    rows = tuple(
        (
            f"{clean(row.rule, 12)} {clean(row.title, 200)}",
            UNKNOWN if row.base_cost_ns is None else scale.format(row.base_cost_ns),
            UNKNOWN if row.new_cost_ns is None else scale.format(row.new_cost_ns),
            _STATUS[row.status],
        )
        for row in comparison.findings
    )
    return Section((f"Findings, {scale.unit} a step", "base", "new", "in"), rows)


def _stragglers(comparison: Comparison) -> Section:
    rows = tuple(
        (f"rank {row.rank}", *((side or "nothing").replace("_", " ") for side in (row.base, row.new)))
        for row in comparison.stragglers
    )
    return Section(("Holds up the others", "base", "new"), rows)


def runs_section(comparisons: Sequence[Comparison]) -> Section:
    """All runs beside each other: strategy × (overlap ratio, step time, MFU, peak memory)."""
    runs = [comparisons[0].base, *(comparison.new for comparison in comparisons)]
    scale = fine_scale(max(run.step_time_ns or 0 for run in runs))
    changes = [UNKNOWN, *map(_step_change, comparisons)]
    rows = tuple(
        (
            clean(run.name, 60),
            _short_strategy(run.strategy),
            UNKNOWN if run.overlap_ratio is None else f"{run.overlap_ratio:.2f}",
            UNKNOWN if run.step_time_ns is None else scale.format(run.step_time_ns),
            change,
            UNKNOWN if run.mfu is None else f"{100 * run.mfu:.1f} %",
            UNKNOWN if run.peak_memory_bytes is None else size(run.peak_memory_bytes),
        )
        for run, change in zip(runs, changes, strict=True)
    )
    return Section(("Runs", "strategy", "overlap", f"step {scale.unit}", "change", "MFU", "peak mem"), rows)


def _short_strategy(strategy: str | None) -> str:
    """The strategy, by the first of its names where all of them are long."""
    if strategy is None:
        return UNKNOWN
    return clean(strategy if len(strategy) <= LONGEST_STRATEGY else strategy.split(" / ")[0], LONGEST_STRATEGY)


def _step_change(comparison: Comparison) -> str:
    step = comparison.step_time
    if comparison.unlike:
        return "other job"
    if step.difference is None or not step.base:
        return UNKNOWN
    if step.verdict is Verdict.WITHIN_NOISE:
        return "noise"
    doubt = " ?" if step.verdict is Verdict.TOO_FEW_STEPS else ""
    return signed(step.difference / step.base, lambda part: f"{100 * part:.1f} %") + doubt
