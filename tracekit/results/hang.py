"""Why a job stands still."""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.evidence import NO_FACTS, Activity, ProcessFacts
from tracekit.runs import few_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A communicator that the verdict names."""

    name: str
    description: str | None
    """What the job calls it, such as ``EXPERT_MODEL_PARALLEL_GROUP``."""
    ranks: tuple[int, ...] | None
    """Its global ranks; None where no source tells."""

    @property
    def label(self) -> str:
        """For people: ``EXPERT_MODEL_PARALLEL_GROUP (12-15)``."""
        members = f" ({few_runs(self.ranks)})" if self.ranks else ""
        return (self.description or self.name) + members


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One node of the wait graph: a collective (or a batch of sends and receives) that ranks are inside.

    Collectives of groups of the same description, whose ranks wait for the same, are one node.
    """

    groups: tuple[ProcessGroup, ...]
    """The first few of its communicators."""
    communicators: int
    """How many it has."""
    seq: int
    """Of the first communicator."""
    op: str | None
    waiting: tuple[int, ...]
    """Ranks that launched it and are inside."""
    missing: tuple[int, ...]
    """Ranks that never launched it."""
    behind: tuple[int, ...]
    """Ranks that launched it behind another collective that they are still inside."""
    waits_for: tuple[int, ...]
    """Indices into `Hang.waits`: where the missing and those behind are stuck themselves."""
    is_root: bool
    """It waits for nothing that another node explains: a cause, not a consequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How far some ranks got in the communicator of the verdict, from all that is known of them."""

    ranks: tuple[int, ...]
    launched: int | None
    """Last number launched; None where nothing tells."""
    completed: int | None
    """Last number known to be completed."""
    source: str
    """``entries``, ``status`` (what the process counts beside them) or ``both``; ``none`` where nothing tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """An entry that is not finished and that the verdict cannot explain."""

    rank: int
    communicator: str
    seq: int | None
    op: str | None
    state: str | None
    why: str
    """In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One edge of the wait-for graph: a rank is inside a collective that another rank has not launched."""

    rank: int
    communicator: str
    seq: int
    op: str | None
    waits_for: int
    """The rank that has not launched it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One collective that its ranks called with different arguments, or with sizes that cannot be."""

    verdict: str
    """type_mismatch, size_mismatch or dtype_mismatch."""
    communicator: str
    seq: int
    op: str | None
    """What the majority called; None where no op has one."""
    ranks: tuple[int, ...]
    """Who differs from the majority; all ranks where none has one, or where all agree on something impossible."""
    expected: str
    """What the majority called (or what would fit), in words."""
    found: tuple[tuple[tuple[int, ...], str], ...]
    """(ranks, what they called) for each way of calling it, the most frequent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastActivity:
    """What one rank was doing last."""

    rank: int
    communicator: str | None
    """Of its last collective."""
    seq: int | None
    op: str | None
    state: str | None
    """issued, started, completed, or None where the source does not tell."""
    activity: Activity
    process: ProcessFacts = NO_FACTS


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRanks:
    """Ranks that got equally far in the collectives around the point where a job parts."""

    ranks: tuple[int, ...]
    states: tuple[str, ...]
    """By collective: completed, started, issued or unknown (launched, no more is told); absent (never launched);
    differs (launched, but called differently from the others); lost (before what is known of these ranks)."""
    steps: tuple[int | None, ...]
    """By collective: the training step it was launched in; None where it was not, and where that is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The collectives of one communicator around the point where its ranks part."""

    communicator: str
    seqs: tuple[int, ...]
    ops: tuple[str | None, ...]
    """By collective, what most ranks called; None where that is not told."""
    rows: tuple[SameRanks, ...]
    """Ranks that are furthest behind first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Why a job stands still: where its ranks part, and who is on which side."""

    verdict: str
    """missing_rank, type_mismatch, size_mismatch, dtype_mismatch, state_mismatch, order_inversion, unfinished,
    step_desync, host_blocked, not_a_hang or undecided."""
    communicator: str | None
    """Where they part; None where no collective can be named (as for the four fields below)."""
    description: str | None
    """What the job calls the communicator."""
    seq: int | None
    op: str | None
    missing_ranks: tuple[int, ...]
    """Ranks that never launched this collective."""
    waiting_ranks: tuple[int, ...]
    """Ranks that launched it and have not completed it."""
    ahead_ranks: tuple[int, ...]
    """The side that got further in this communicator (which may be the smaller one)."""
    behind_ranks: tuple[int, ...]
    culprits: tuple[int, ...]
    """Ranks to look at first: the absent ones, or those that differ from the majority; () where nobody stands out."""
    cycle: tuple[Waiting, ...]
    """The shortest cycle of the wait-for graph; () where there is none."""
    mismatches: tuple[Mismatch, ...]
    """All mismatched collectives, not only the one that the verdict is about; earliest first."""
    last_activity: tuple[LastActivity, ...]
    """One for each rank with evidence, by rank."""
    step: int | None
    """Training step of the ranks that are behind (of all, where none is); None where unknown or various."""
    module: str | None
    lacking: tuple[str, ...]
    """What would decide it, where something is missing: dumps of ranks, flags of nsys, sizes."""
    notes: tuple[str, ...]
    """What the readers passed over, and what else was seen, in words."""
    around: tuple[Around, ...] = ()
    """Who launched and who finished what, around the point where the ranks part; for a cycle, in each of its
    communicators."""
    group: ProcessGroup | None = None
    """The communicator where they part, with its members."""
    groups: tuple[ProcessGroup, ...] = ()
    """Every communicator named by the verdict, its cycle and its mismatches, each once, in order of name."""
    launched: tuple[Launched, ...] = ()
    """How far each rank of the communicator got, those furthest behind first; equal ranks together."""
    waits: tuple[Wait, ...] = ()
    """The wait graph, roots first; the same for all findings of one job. Small also for thousands of ranks."""
    waits_left_out: int = 0
    """Nodes beyond these."""
    unfinished: tuple[Unfinished, ...] = ()
    """For ``undecided``: the entries that keep it from being ``not_a_hang``, one for each communicator and rank."""
    others: tuple[Hang, ...] = ()
    """Further hangs that have nothing to do with this one, those that stop most ranks first; of these ``waits``,
    ``last_activity``, ``lacking`` and ``notes`` are told here alone."""

    @property
    def is_hang(self) -> bool:
        """Whether a hang was found: neither ``not_a_hang`` nor ``undecided``."""
        return self.verdict not in ("not_a_hang", "undecided")
