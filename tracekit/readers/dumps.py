"""The dumps of one job as `Evidence`."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tracekit.errors import CaptureError
from tracekit.evidence import (
    NO_STATUS,
    UNKNOWN,
    Activity,
    Communicator,
    Entries,
    Evidence,
    RankEvidence,
    State,
    Status,
    Unread,
)
from tracekit.readers.dump_files import COPY_AGAIN, DamagedDumpError
from tracekit.readers.dump_groups import Group
from tracekit.readers.flight_recorder import Dump, is_unfinished, read_dump, unknown_rank
from tracekit.workers import POSSIBLE, WorkerEndedError, cores, run

PARALLEL_FROM = 32 << 20
"""Bytes of dumps from which more than one process reads them."""
CHUNK = 16
MOST_DAMAGED_NAMED = 5
MOST_PROCESSES = 16

Progress = Callable[[int, int], None]


def read_dumps(paths: Sequence[Path], progress: Progress | None = None) -> Evidence:
    """Read the dumps of one job, one a rank; ``progress`` gets (files done, files).

    Raises `CaptureError` for a file that is no dump, two dumps of one rank, a dump of unknown rank, and dumps whose
    process groups contradict one another: they are of different jobs. A damaged dump beside others is passed over.
    """
    read = _read_all(paths, progress or (lambda done, expected: None))
    dumps, damaged = [dump for dump in read if isinstance(dump, Dump)], [text for text in read if isinstance(text, str)]
    if not dumps and damaged:
        raise DamagedDumpError(damaged[0], hint=COPY_AGAIN)
    _check_ranks(dumps)
    dumps.sort(key=lambda dump: dump.rank or 0)
    job = Job(counts=not any(dump.counts_operations for dump in dumps), mixed=_mixed(dumps))
    ranks = [job.add(dump) for dump in dumps]
    order, place = _ways_last(job.groups)
    return Evidence(
        ranks=tuple(_renumbered(rank, place) for rank in ranks),
        communicators=tuple(
            Communicator(
                name=group.name,
                description=group.description or None,
                ranks=group.ranks,
                is_way=group.is_way,
                of=group.of,
            )
            for group in order
        ),
        names=tuple(job.names),
        world_size=len(job.world) if job.world else None,
        interrupted=None,
        notes=(*_passed_over(damaged), *_notes(dumps, job.guessed)),
        only_unfinished=_only_unfinished(dumps),
        unread=tuple(unread for dump in dumps for unread in _unread(dump)),
    )


@dataclass(slots=True)
class Job:
    """What the dumps have in common: process groups and names, numbered once."""

    counts: bool
    """The processes' own counts are of collectives."""
    mixed: frozenset[tuple[str, tuple[int, ...] | None]]
    """(name, ranks) of groups with sends and receives, which those counts mix with collectives."""
    guessed: int = 0
    """Ranks with a count of a group that only the order of creation maps."""
    groups: list[Group] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    world: tuple[int, ...] | None = None
    _world_path: str = ""
    _members: frozenset[int] = frozenset()
    _group_of: dict[tuple[object, ...], int] = field(default_factory=dict)
    _claims: dict[tuple[str, int], tuple[tuple[int, ...], str]] = field(default_factory=dict)
    _name_of: dict[str, int] = field(default_factory=dict)

    def add(self, dump: Dump) -> RankEvidence:
        """One dump's side."""
        if dump.world is not None:
            if self.world is not None and self.world != dump.world:
                raise _different_jobs(self._world_path, dump.path)
            if self.world is None:
                self.world, self._world_path, self._members = dump.world, dump.path, frozenset(dump.world)
        assert dump.rank is not None
        if self.world is not None and dump.rank not in self._members:
            raise CaptureError(
                f"{dump.path}: rank {dump.rank} is not in a job of {len(self.world)} ranks",
                hint="Take the rank's number from the job, and end the file's name with it.",
            )
        communicators = np.array([self._group(group, dump.path) for group in dump.groups] + [UNKNOWN], np.int32)
        names = np.array([self._name(name) for name in dump.names] + [UNKNOWN], np.int32)
        columns = dump.columns
        return RankEvidence(
            rank=dump.rank,
            rank_source=dump.rank_source,
            source=dump.path,
            entries=Entries(
                communicator=communicators[columns["communicator"]],
                seq=columns["seq"],
                op=names[columns["op"]],
                elements_in=columns["elements_in"],
                elements_out=columns["elements_out"],
                dtype=names[columns["dtype"]],
                state=columns["state"].astype(np.int8),
                step=np.full(len(columns["seq"]), UNKNOWN, np.int64),
                launch=columns["launch"],
                created=columns["created"],
            ),
            wrapped=dump.wrapped or dump.has_gaps,
            end_ns=None,
            activity=Activity(last_collective=dump.last_collective, frames=dump.frames),
            status=self._status(dump, communicators),
            at_rest=dump.at_rest,
            process=dump.process,
        )

    def _status(self, dump: Dump, communicators: np.typing.NDArray[np.int32]) -> Status:
        counts = [
            (index, count)
            for index, count in dump.counts
            if self.counts and (dump.groups[index].name, dump.groups[index].ranks) not in self.mixed
        ]
        if not counts:
            return NO_STATUS
        self.guessed += any(not count.mapped for _, count in counts)
        return Status(
            communicator=communicators[[index for index, _ in counts]],
            launched=np.array([count.launched for _, count in counts], np.int64),
            started=np.array([count.started for _, count in counts], np.int64),
            completed=np.array([count.completed for _, count in counts], np.int64),
        )

    def _group(self, group: Group, path: str) -> int:
        key = group.name, group.description, group.ranks, group.is_way
        if key not in self._group_of:
            # Groups of the same name are told apart by their ranks; sharing a rank, they contradict one another.
            for rank in group.ranks or ():
                ranks, other = self._claims.setdefault((group.name, rank), (group.ranks or (), path))
                if ranks != group.ranks:
                    raise _different_jobs(other, path)
            self._group_of[key] = len(self.groups)
            self.groups.append(group)
        return self._group_of[key]

    def _name(self, name: str) -> int:
        if name not in self._name_of:
            self._name_of[name] = len(self.names)
            self.names.append(name)
        return self._name_of[name]


def _read_all(paths: Sequence[Path], progress: Progress) -> list[Dump | str]:
    """In order of the paths, what is wrong in place of a damaged one; by several processes where it is much."""
    chunks = [(paths[i : i + CHUNK],) for i in range(0, len(paths), CHUNK)]
    processes = min(cores(), MOST_PROCESSES, len(chunks))
    if processes < 2 or not POSSIBLE or sum(path.stat().st_size for path in paths if path.exists()) < PARALLEL_FROM:
        dumps: list[Dump | str] = []
        for done, chunk in enumerate(chunks, start=1):
            dumps += _read_chunk(*chunk)
            progress(min(done * CHUNK, len(paths)), len(paths))
        return dumps
    try:
        read = run(_read_chunk, chunks, processes, lambda done: progress(min(done * CHUNK, len(paths)), len(paths)))
    except WorkerEndedError as error:
        raise CaptureError(
            f"{chunks[error.task][0][0]}: the process that read it and its neighbours ended ({error.how})",
            hint="Read fewer dumps at once, or leave these out.",
        ) from error
    return [dump for dumps in read for dump in dumps]


def _read_chunk(paths: Sequence[Path]) -> list[Dump | str]:
    """Some dumps, without the garbage collector: their millions of small containers are in no cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return [_read_or_why_not(path) for path in paths]
    finally:
        if enabled:
            gc.enable()


def _read_or_why_not(path: Path) -> Dump | str:
    """A dump; of a damaged one, what is wrong."""
    try:
        return read_dump(path)
    except DamagedDumpError as error:
        return str(error)


def _passed_over(damaged: Sequence[str]) -> tuple[str, ...]:
    """What is told of dumps that were cut off: their ranks count as ranks without a dump."""
    shown = tuple(f"passed over {why}" for why in damaged[:MOST_DAMAGED_NAMED])
    rest = len(damaged) - len(shown)
    return (*shown, *([f"{rest:,} further damaged dumps were passed over"] if rest else []))


def _check_ranks(dumps: Sequence[Dump]) -> None:
    of_rank: dict[int, str] = {}
    for dump in dumps:
        if dump.rank is None:
            raise unknown_rank(dump.path)
        if dump.rank in of_rank:
            raise CaptureError(
                f"{of_rank[dump.rank]} and {dump.path}: two dumps of rank {dump.rank}", hint="Name one of each rank."
            )
        of_rank[dump.rank] = dump.path


def _ways_last(groups: Sequence[Group]) -> tuple[list[Group], np.typing.NDArray[np.int32]]:
    """(process groups before the ways in them, the new place of each)."""
    order = sorted(range(len(groups)), key=lambda index: groups[index].is_way)
    place = np.empty(len(groups), np.int32)
    place[order] = np.arange(len(groups), dtype=np.int32)
    return [groups[index] for index in order], place


def _renumbered(rank: RankEvidence, place: np.typing.NDArray[np.int32]) -> RankEvidence:
    return replace(
        rank,
        entries=replace(rank.entries, communicator=place[rank.entries.communicator]),
        status=replace(rank.status, communicator=place[rank.status.communicator]),
    )


def _mixed(dumps: Sequence[Dump]) -> frozenset[tuple[str, tuple[int, ...] | None]]:
    """(name, ranks) of the groups in which any rank sends or receives."""
    return frozenset(
        (group.name, group.ranks)
        for dump in dumps
        for group in dump.groups
        if not group.is_way and group.name in dump.mixed
    )


def _only_unfinished(dumps: Sequence[Dump]) -> bool:
    """Whether the job left finished collectives out of its dumps.

    None has a finished one, though the entries are not the job's first; and there are gaps between them, or not as many
    in each as a ring buffer that is full holds.
    """
    if not all(map(is_unfinished, dumps)) or not any(dump.wrapped or dump.has_gaps for dump in dumps):
        return False
    if not all(map(_begins_where_finished, dumps)):
        return False
    return any(dump.has_gaps for dump in dumps) or len({len(dump.columns["seq"]) for dump in dumps}) > 1


def _begins_where_finished(dump: Dump) -> bool:
    """Whether the entries of each group begin right after what its process counts as completed."""
    communicator, seq = dump.columns["communicator"], dump.columns["seq"]
    for index, count in dump.counts:
        here = seq[communicator == index]
        if len(here) and count.completed != UNKNOWN and here[0] > count.completed + 1:
            return False
    return True


def _unread(dump: Dump) -> list[Unread]:
    return [
        Unread(rank=dump.rank or 0, communicator=group, seq=None if seq == UNKNOWN else seq, op=op, state=State(state))
        for group, seq, op, state in dump.unread
    ]


def _notes(dumps: Sequence[Dump], guessed: int) -> tuple[str, ...]:
    notes = []
    if passed := sum(dump.passed_over for dump in dumps):
        notes.append(f"{passed:,} entries of the dumps were passed over: incomplete, or without a peer")
    if guessed:
        noun = "rank" if guessed == 1 else "ranks"
        notes.append(
            f"what {guessed:,} {noun} count for groups without entries is mapped by the order in which they were made"
        )
    versions = Counter(dump.version for dump in dumps if dump.version)
    if len(versions) > 1:
        notes.append(f"the dumps are of different versions: {', '.join(sorted(versions))}")
    if _only_unfinished(dumps):
        notes.append("the dumps list unfinished collectives alone (TORCH_INCLUDE_ONLY_ACTIVE)")
    elif wrapped := sum(dump.wrapped for dump in dumps):
        noun = "rank" if wrapped == 1 else "ranks"
        notes.append(f"the ring buffer of {wrapped:,} {noun} has lost its early entries (TORCH_FR_BUFFER_SIZE)")
    return tuple(notes)


def _different_jobs(one: str, other: str) -> CaptureError:
    return CaptureError(
        f"{one} and {other}: their process groups contradict one another; these are dumps of different jobs",
        hint="Name the dumps of one job; torch overwrites those of the job before, rank by rank.",
    )
