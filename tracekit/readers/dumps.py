"""The dumps of one job as `Evidence`."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tracekit.errors import CaptureError
from tracekit.evidence import UNKNOWN, Activity, Communicator, Entries, Evidence, RankEvidence
from tracekit.readers.flight_recorder import Dump, Group, read_dump, unknown_rank

PARALLEL_FROM = 32 << 20
"""Bytes of dumps from which more than one process reads them."""
CHUNK = 8

Progress = Callable[[int, int], None]


def read_dumps(paths: Sequence[Path], progress: Progress | None = None) -> Evidence:
    """Read the dumps of one job, one a rank; ``progress`` gets (files done, files).

    Raises `CaptureError` for a file that is no dump, two dumps of one rank, a dump of unknown rank, and dumps whose
    process groups contradict one another: they are of different jobs.
    """
    dumps: list[Dump] = []
    for dump in _read_all(paths):
        dumps.append(dump)
        if progress:
            progress(len(dumps), len(paths))
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
    _group_of: dict[tuple[str, str | None, tuple[int, ...] | None], int] = field(default_factory=dict)
    _claims: dict[tuple[str, int], tuple[tuple[int, ...], str]] = field(default_factory=dict)
    _name_of: dict[str, int] = field(default_factory=dict)

    def add(self, dump: Dump) -> RankEvidence:
        """One dump's side."""
        if dump.world is not None:
            if self.world is not None and self.world != dump.world:
                raise _different_jobs(self._world_path, dump.path)
            self.world, self._world_path = dump.world, dump.path
        assert dump.rank is not None
        if self.world is not None and dump.rank not in self.world:
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


def _read_all(paths: Sequence[Path]) -> Iterator[Dump]:
    """In order of the paths; by several processes where it is much."""
    workers = min(os.cpu_count() or 1, 8, len(paths))
    size = sum(path.stat().st_size for path in paths if path.exists())
    if workers < 2 or size < PARALLEL_FROM:
        yield from _without_collector(paths)
        return
    chunks = [paths[i : i + CHUNK] for i in range(0, len(paths), CHUNK)]
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            for dumps in pool.map(_read_chunk, chunks):
                yield from dumps
    except BrokenProcessPool as error:
        raise CaptureError("the dumps could not be read: a reading process died", hint="Read fewer at once.") from error


def _read_chunk(paths: Sequence[Path]) -> list[Dump]:
    return list(_without_collector(paths))


def _without_collector(paths: Sequence[Path]) -> Iterator[Dump]:
    """Millions of small containers, none of them in a cycle, keep the garbage collector busy for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        for path in paths:
            yield read_dump(path)
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
        notes.append(f"the ring buffer of {wrapped:,} ranks has lost its early entries (TORCH_FR_BUFFER_SIZE)")
    return tuple(notes)


def _different_jobs(one: str, other: str) -> CaptureError:
    return CaptureError(
        f"{one} and {other}: their process groups contradict one another; these are dumps of different jobs",
        hint="Name the dumps of one job; torch overwrites those of the job before, rank by rank.",
    )
