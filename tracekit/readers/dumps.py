"""The dumps of one job as `Evidence`."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tracekit.errors import CaptureError
from tracekit.evidence import UNKNOWN, Activity, Communicator, Entries, Evidence, RankEvidence
from tracekit.readers.flight_recorder import Dump, Group, read_dump, unknown_rank
from tracekit.workers import POSSIBLE, WorkerEndedError, cores, run

PARALLEL_FROM = 32 << 20
"""Bytes of dumps from which more than one process reads them."""
CHUNK = 16
MOST_PROCESSES = 16

Progress = Callable[[int, int], None]


def read_dumps(paths: Sequence[Path], progress: Progress | None = None) -> Evidence:
    """Read the dumps of one job, one a rank; ``progress`` gets (files done, files).

    Raises `CaptureError` for a file that is no dump, two dumps of one rank, a dump of unknown rank, and dumps whose
    process groups contradict one another: they are of different jobs.
    """
    dumps = _read_all(paths, progress or (lambda done, expected: None))
    _check_ranks(dumps)
    job = Job()
    ranks = [job.add(dump) for dump in sorted(dumps, key=lambda dump: dump.rank or 0)]
    return Evidence(
        ranks=tuple(ranks),
        communicators=tuple(
            Communicator(name=group.name, description=group.description or None, ranks=group.ranks)
            for group in job.groups
        ),
        names=tuple(job.names),
        world_size=len(job.world) if job.world else None,
        interrupted=None,
        notes=_notes(dumps),
    )


@dataclass(slots=True)
class Job:
    """What the dumps have in common: process groups and names, numbered once."""

    groups: list[Group] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    world: tuple[int, ...] | None = None
    _world_path: str = ""
    _members: frozenset[int] = frozenset()
    _group_of: dict[tuple[str, str | None, tuple[int, ...] | None], int] = field(default_factory=dict)
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
            ),
            wrapped=dump.wrapped,
            end_ns=None,
            activity=Activity(last_collective=dump.last_collective, frames=dump.frames),
        )

    def _group(self, group: Group, path: str) -> int:
        key = group.name, group.description, group.ranks
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


def _read_all(paths: Sequence[Path], progress: Progress) -> list[Dump]:
    """In order of the paths; by several processes where it is much."""
    chunks = [(paths[i : i + CHUNK],) for i in range(0, len(paths), CHUNK)]
    processes = min(cores(), MOST_PROCESSES, len(chunks))
    if processes < 2 or not POSSIBLE or sum(path.stat().st_size for path in paths if path.exists()) < PARALLEL_FROM:
        dumps = []
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


def _read_chunk(paths: Sequence[Path]) -> list[Dump]:
    """Some dumps, without the garbage collector: their millions of small containers are in no cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return [read_dump(path) for path in paths]
    finally:
        if enabled:
            gc.enable()


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


def _notes(dumps: Sequence[Dump]) -> tuple[str, ...]:
    notes = []
    if passed := sum(dump.passed_over for dump in dumps):
        notes.append(f"{passed:,} entries of the dumps were passed over: incomplete, or sends whose ordinal is lost")
    versions = Counter(dump.version for dump in dumps if dump.version)
    if len(versions) > 1:
        notes.append(f"the dumps are of different versions: {', '.join(sorted(versions))}")
    if wrapped := sum(dump.wrapped for dump in dumps):
        noun = "rank" if wrapped == 1 else "ranks"
        notes.append(f"the ring buffer of {wrapped:,} {noun} has lost its early entries (TORCH_FR_BUFFER_SIZE)")
    return tuple(notes)


def _different_jobs(one: str, other: str) -> CaptureError:
    return CaptureError(
        f"{one} and {other}: their process groups contradict one another; these are dumps of different jobs",
        hint="Name the dumps of one job; torch overwrites those of the job before, rank by rank.",
    )
