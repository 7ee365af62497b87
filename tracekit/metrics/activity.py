"""What a process's host threads were doing: which CUDA call, which NVTX range, at an instant or before it.

A launching thread that waits (autograd's, between two backward passes) is inside nothing: what kept it waiting is what
the process's main thread was doing, so that one speaks for it, as it does in `labels`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import innermost, intersect, subtract, union
from tracekit.metrics.labels import Vocabulary
from tracekit.timeline import NONE, Ops, Process, Source

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]


class Doing(IntEnum):
    """What a thread does at an instant; of several, the lowest stands."""

    COMM_INIT = 0
    """Sets up a communicator."""
    FIRST_USE = 1
    """Loads code of the GPU, or captures a graph: what a kernel, a library or a graph takes when it is first used."""
    SYNC = 2
    """Waits for the GPU: a synchronising call, or a copy that returns only when it is done."""
    ALLOCATOR = 3
    """Allocates or frees memory of the GPU, or pinned memory of the host."""
    DATA = 4
    """Is inside a range that loads data."""
    OTHER = 5
    """Anything else: host code, or a launch."""


BLOCKING = (Doing.SYNC, Doing.ALLOCATOR)


EVENT_SYNCS = frozenset({"cudaEventSynchronize", "cuEventSynchronize"})
_SYNC = re.compile(r"(cuda|cu)(Stream|Device|Event|Ctx|Context|Thread)Synchronize|(cuda|cu)Memcpy(?!.*Async).*")
_FREE = re.compile(r"cudaFree\w*|cuMem(Free|FreeHost|Release|Unmap|HostUnregister|AddressFree)|cudaHostUnregister")
_ALLOCATE = re.compile(
    r"cudaMalloc\w*|cudaHost(Alloc|Register)|cuMem(Alloc\w*|Create|Map|HostAlloc|HostRegister|AddressReserve|SetAccess)"
)


_LOADING = re.compile(
    r"cu(Module(Load\w*|GetFunction\w*)|Library(Load\w*|GetKernel|GetModule)|Link(Create|Add|Complete)\w*)"
    r"|cuda(LibraryLoad\w*|ModuleLoad\w*)|hipModule(Load\w*|GetFunction)"
    r"|(cuda|cu|hip)(GraphInstantiate\w*|StreamBeginCapture\w*)"
)
_STARTS_LIBRARY = re.compile("cuInit|hipInit")
_SETS_UP_COMMUNICATOR = re.compile(
    r"ncclComm(Init|Split|Grow|Shrink)\w*|init_process_group|\w*\bProcessGroupNCCL\w*init\w*", re.IGNORECASE
)


def is_loading(name: str) -> bool:
    """A call that loads code of the GPU, or makes a graph of launches."""
    return _LOADING.fullmatch(name) is not None


def starts_library(name: str) -> bool:
    """A call that a library makes once, when it is first used: what comes before it is the library being found."""
    return _STARTS_LIBRARY.fullmatch(name) is not None


def sets_up_communicator(name: str) -> bool:
    """A range in which a communicator is made."""
    return _SETS_UP_COMMUNICATOR.fullmatch(name) is not None


def is_sync(name: str) -> bool:
    """A call that returns only when work on the GPU has ended."""
    return _SYNC.fullmatch(name) is not None


def is_free(name: str) -> bool:
    """A call that gives memory back, pinned memory included; freeing waits for the GPU."""
    return _FREE.fullmatch(name) is not None


def is_allocation(name: str) -> bool:
    """A call that takes memory, pinned memory included."""
    return _ALLOCATE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """What a thread does when: disjoint sorted intervals, each of one `Doing`; the time between them is OTHER."""

    start: Int64
    end: Int64
    doing: Int8

    def cut(self, start: Int64, end: Int64) -> Stretches:
        """Disjoint sorted windows, cut where the thread turns to something else; OTHER is spelled out."""
        inside = intersect((start, end), (self.start, self.end))
        rest = subtract((start, end), union(self.start, self.end))
        at = np.concatenate([inside[0], rest[0]])
        order = np.argsort(at, kind="stable")
        doing = np.full(len(at), Doing.OTHER, np.int8)
        doing[: len(inside[0])] = self.doing[np.searchsorted(self.start, inside[0], side="right") - 1]
        return Stretches(at[order], np.concatenate([inside[1], rest[1]])[order], doing[order])

    def blocked_across(self, t: Int64) -> Bool:
        """Whether the thread is in blocking calls, without a pause between them, from before each t until after it."""
        rows = np.isin(self.doing, BLOCKING)
        start, end = union(self.start[rows], self.end[rows])
        if len(start) == 0:
            return np.zeros(len(t), np.bool_)
        at = np.searchsorted(start, t) - 1
        result: Bool = (at >= 0) & (end[np.maximum(at, 0)] > t)
        return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """Look-ups in one rank's host threads. All answers have one entry a question; NONE where there is no such row."""

    process: Process
    names: Sequence[str]
    doing: Int8
    """`Doing` of each call: SYNC, ALLOCATOR, FIRST_USE or OTHER."""
    library: NDArray[np.intp]
    """Rows of calls that a library makes when it is first used."""
    is_data: Bool
    """Ranges that load data."""
    is_comm_init: Bool
    """Ranges in which a communicator is made."""
    speaker: int | None
    """The process's main thread."""

    @classmethod
    def of(
        cls, process: Process, ops: Ops, names: Sequence[str], words: Vocabulary, speaker: int | None = None
    ) -> Activity:
        """From a rank's operations and its process's rows; without a ``speaker`` the thread with most calls is it."""
        calls = process.calls
        doing = _codes(calls.name, names, _code_of)
        library = np.flatnonzero(doing == _LIBRARY)
        doing[library] = Doing.OTHER
        # A copy from or to pageable memory holds its call until it is done, whatever the call's name says.
        held = (ops.source == Source.MEMCPY) & ops.pageable & (ops.call != NONE)
        doing[ops.call[held]] = Doing.SYNC
        if speaker is None and len(calls):
            threads, counts = np.unique(calls.thread, return_counts=True)
            speaker = int(threads[np.argmax(counts)])
        return cls(
            process=process,
            names=names,
            doing=doing,
            library=library,
            is_data=words.where(lambda a: a.phase == "data"),
            is_comm_init=names_that(process.ranges.name, names, sets_up_communicator),
            speaker=speaker,
        )

    @property
    def named_ranges(self) -> Bool:
        """(ranges,) mask of those with a name that are not NCCL's."""
        ranges = self.process.ranges
        nccl = [i for i in np.unique(ranges.domain).tolist() if i != NONE and self.names[i] == "NCCL"]
        result: Bool = (ranges.name != NONE) & ~np.isin(ranges.domain, np.array(nccl, ranges.domain.dtype))
        return result

    @property
    def tells_of_data(self) -> bool:
        """Whether any range of the process loads data."""
        return bool(self.is_data.any())

    def stretches(self, thread: int) -> Stretches:
        """The time in which a thread, or the main one, is in anything but OTHER."""
        calls, ranges = self.process.calls, self.process.ranges
        mine = (calls.thread == thread) | (calls.thread == self.speaker)
        told = (ranges.thread == thread) | (ranges.thread == self.speaker)
        taken = np.empty(0, np.int64), np.empty(0, np.int64)
        parts: list[tuple[Int64, Int64, Int8]] = []
        of_ranges = {Doing.DATA: self.is_data, Doing.COMM_INIT: self.is_comm_init}
        for doing in (Doing.COMM_INIT, Doing.FIRST_USE, Doing.SYNC, Doing.ALLOCATOR, Doing.DATA):
            table, rows = (
                (ranges, told & of_ranges[doing]) if doing in of_ranges else (calls, mine & (self.doing == doing))
            )
            own = subtract(union(table.start[rows], table.end[rows]), taken)
            taken = union(np.concatenate([taken[0], own[0]]), np.concatenate([taken[1], own[1]]))
            parts.append((*own, np.full(len(own[0]), doing, np.int8)))
        start, end = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.argsort(start, kind="stable")
        return Stretches(start[order], end[order], np.concatenate([part[2] for part in parts])[order])

    def call_of(self, thread: int, t: Int64, doing: Doing) -> Int64:
        """Row of the last call of a kind, on a thread or on the main one, that started before each instant."""
        calls = self.process.calls
        rows = np.flatnonzero(((calls.thread == thread) | (calls.thread == self.speaker)) & (self.doing == doing))
        return _picked(rows, np.searchsorted(calls.start[rows], t) - 1)

    def range_around(self, thread: int, t: Int64, among: Bool | None = None) -> Int64:
        """Row of the thread's innermost NVTX range at each instant; ``among`` picks the ranges that count."""
        ranges = self.process.ranges
        rows = _rows(ranges.thread, thread, among)
        return _picked(rows, innermost(ranges.start[rows], ranges.end[rows], t))

    def range_of(self, calls: Int64, among: Bool) -> Int64:
        """Row of the innermost range around each call's start, on its thread, else on the main thread."""
        answer = np.full(len(calls), NONE, np.int64)
        known = np.flatnonzero(calls != NONE)
        thread, at = self.process.calls.thread[calls[known]], self.process.calls.start[calls[known]]
        for each in np.unique(thread).tolist():
            own = thread == each
            answer[known[own]] = self.range_around(each, at[own], among)
        silent = answer[known] == NONE
        if self.speaker is not None and silent.any():
            answer[known[silent]] = self.range_around(self.speaker, at[silent], among)
        return answer

    def calls_named(self, test: Callable[[str], bool]) -> Bool:
        """(calls,) mask of those whose name passes the test."""
        return names_that(self.process.calls.name, self.names, test)


_LIBRARY = 100
"""Marks `starts_library` while calls are looked up."""


def _code_of(name: str) -> int:
    if is_loading(name):
        return Doing.FIRST_USE
    if is_sync(name):
        return Doing.SYNC
    if is_free(name) or is_allocation(name):
        return Doing.ALLOCATOR
    return _LIBRARY if starts_library(name) else Doing.OTHER


def _codes(name: NDArray[np.int32], names: Sequence[str], code_of: Callable[[str], int]) -> Int8:
    """(n,) code of each name index, asked once for each distinct one."""
    shifted = name.astype(np.int64) + 1
    present = np.bincount(shifted, minlength=1)
    table = np.full(len(present), Doing.OTHER, np.int8)
    for index in np.flatnonzero(present).tolist():
        table[index] = code_of(names[index - 1]) if index else Doing.OTHER
    result: Int8 = table[shifted]
    return result


def names_that(name: NDArray[np.int32], names: Sequence[str], test: Callable[[str], bool]) -> Bool:
    """(n,) mask of the name indices whose name passes the test, asked once for each distinct one; NONE never does."""
    shifted = name.astype(np.int64) + 1
    passed = np.bincount(shifted, minlength=1) > 0
    for index in np.flatnonzero(passed).tolist():
        passed[index] = index > 0 and test(names[index - 1])
    result: Bool = passed[shifted]
    return result


def _rows(threads: Int64, thread: int, among: Bool | None) -> NDArray[np.intp]:
    return np.flatnonzero(threads == thread if among is None else (threads == thread) & among)


def _picked(rows: NDArray[np.intp], at: NDArray[np.int64]) -> Int64:
    """The rows at the given positions; NONE where a position is negative."""
    if len(rows) == 0:
        return np.full(len(at), NONE, np.int64)
    return np.where(at >= 0, rows[np.maximum(at, 0)], NONE)
