"""What an analysis looks at: the options, and the ranks and steps that they pick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracekit.config import DEFAULT, Thresholds
from tracekit.errors import UsageError
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.run import ModelFacts
from tracekit.results import HostRank
from tracekit.runs import few_runs
from tracekit.theory.gpus import Gpu
from tracekit.timeline import RankTrack, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to look at. The default looks at everything."""

    steps: frozenset[int] | None = None
    """Only these steps, which are then the steady ones."""
    ranks: frozenset[int] | None = None
    window: tuple[int | None, int | None] = (None, None)
    """Only the time between these instants (ns, on the first rank's clock); steps must lie inside."""
    step_marker: str | None = None
    """Name of the NVTX range that marks a step, or a regular expression for it."""
    skip_warmup: int | None = None
    """Leave out exactly this many leading steps from the steady ones; None: by the rule."""
    rules: bool = True
    what_if: tuple[str, ...] = ()
    """Changes to replay, such as ``bandwidth=2x,straggler=off``: each a list of changes that are made together."""
    align: bool = True
    """Align the captures' clocks by their collectives; without, times are compared as they are."""
    allow_no_gpu: bool = False
    """Report the NVTX view of captures that hold no rank."""
    model: ModelFacts | None = None
    """The model that is trained, where the captures do not say or say it wrongly."""
    tokens_per_step: int | None = None
    """Tokens of the whole job in a step, likewise."""
    gpu: Gpu | None = None
    """The kind of GPU, likewise."""
    select: tuple[str, ...] = ()
    """Report only rules whose codes begin so; () for all. All are checked: who is left out still has its time."""
    ignore: tuple[str, ...] = ()
    thresholds: Thresholds = DEFAULT


def picked_host_ranks(ranks: tuple[HostRank, ...], options: Options) -> tuple[HostRank, ...]:
    """The ranks and steps asked for, of captures without GPU work. Raises `UsageError` where one is not there."""
    have, steps = {rank.rank for rank in ranks}, {step.step for rank in ranks for step in rank.steps}
    for name, wanted, there in (("rank", options.ranks, have), ("step", options.steps, steps)):
        if missing := sorted((wanted or frozenset()) - there):
            raise UsageError(
                f"--{name}s: there is no {name} {missing[0]}", hint=f"The captures hold {name}s {few_runs(there)}."
            )
    return tuple(
        replace(rank, steps=tuple(s for s in rank.steps if options.steps is None or s.step in options.steps))
        for rank in ranks
        if options.ranks is None or rank.rank in options.ranks
    )


def picked_ranks(timeline: Timeline, options: Options) -> tuple[RankTrack, ...]:
    """The ranks asked for. Raises `UsageError` where one is not there."""
    if options.ranks is None:
        return timeline.ranks
    have = {track.rank for track in timeline.ranks}
    missing = sorted(options.ranks - have)
    if missing:
        raise UsageError(f"--ranks: there is no rank {missing[0]}", hint=f"The captures hold ranks {few_runs(have)}.")
    return tuple(track for track in timeline.ranks if track.rank in options.ranks)


def picked_steps(measured: Sequence[RankMeasures], options: Options) -> list[RankMeasures]:
    """The ranks with the steps asked for only. Raises `UsageError` where one is not there."""
    if options.steps is None:
        return list(measured)
    have = {step.step for m in measured for step in m.steps}
    missing = sorted(options.steps - have)
    if not have:
        raise UsageError(
            "--steps: the captures hold no steps", hint="Name the range that marks one with --step-marker."
        )
    if missing:
        raise UsageError(f"--steps: there is no step {missing[0]}", hint=f"The captures hold steps {few_runs(have)}.")
    return [replace(m, steps=tuple(step for step in m.steps if step.step in options.steps)) for m in measured]
