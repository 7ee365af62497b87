"""What captures tell of a job that stood still: each rank's collectives, how far they got, and what it did last.

An interrupted capture holds ranges that were never left, calls that launched a kernel which never ended (or of which
there is no record: the profiler writes down what has ended), and a long quiet end. A capture without GPU work holds the
ranges alone. What is here at the end of any capture proves nothing by itself: the job has to have been quiet for longer
than a capture needs to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import DEFAULT, Thresholds
from tracekit.evidence import (
    UNKNOWN,
    Activity,
    Communicator,
    Entries,
    Evidence,
    Pending,
    ProcessFacts,
    RankEvidence,
    State,
)
from tracekit.metrics.clocks import ClockFit
from tracekit.metrics.hangs.activity import Observed, idle_of, left_undone, observe
from tracekit.metrics.hangs.align import Member, Progress, aligned, clocks_of, communicators_of, named
from tracekit.metrics.hangs.issued import Group, Issued, issued_by_all
from tracekit.metrics.hangs.launches import progress_of
from tracekit.metrics.hangs.quiet import Quiet
from tracekit.metrics.hangs.unnamed import ended_together, told_apart
from tracekit.metrics.identity import communicator_sizes, world_size
from tracekit.readers.raw import Names
from tracekit.timeline import Timeline

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]

PENDING_KEPT = 8
"""Collectives of a rank that are told to be launched and not finished, the earliest; a host can run far ahead."""
TID_MASK = 0xFFFFFF


def evidence_of(
    timeline: Timeline, thresholds: Thresholds = DEFAULT, *, step_marker: str | None = None, asked: bool = False
) -> Evidence:
    """The evidence of a timeline, with or without GPU work.

    ``step_marker`` names the ranges that mark steps, as for `analyze`; ``asked``: the job is said to hang, so that a
    quiet end is a sign even where it is too short to prove that. Never fails: what cannot be told is UNKNOWN or
    None, and ``notes`` say what was passed over.
    """
    members = members_of(timeline)
    processes = [timeline.processes[m.process] for m in members]
    names = Names()
    notes: list[str] = []
    created = [frozenset(c for c, _, _ in m.track.communicators) if m.track else frozenset() for m in members]
    vocabulary, issued = issued_by_all(timeline, processes, created, communicator_sizes(timeline), names)
    issued = _one_device_each(members, issued, notes)
    seen = [observe(timeline, m.process, m.track, step_marker, thresholds) for m in members]
    progress = [
        progress_of(timeline, m, i, watched, names.as_tuple(), thresholds) if i is not None else None
        for m, i, watched in zip(members, issued, seen, strict=True)
    ]
    lacking = []
    if any(i is not None and done is None for i, done in zip(issued, progress, strict=True)):
        issued, progress = [None] * len(members), [None] * len(members)
        lacking.append("the rows of the CUDA calls that launched the collectives: many are missing in the captures")
    clocks = clocks_of(timeline, members, issued, progress, names, thresholds)
    if vocabulary in ("nccl", "torch"):
        issued, told = told_apart(members, processes, issued, progress, clocks, names)
        notes += told[:1]
        lacking += told[1:]
    groups = communicators_of(members, issued)
    seqs, strangers, by_step = aligned(members, processes, issued, progress, clocks, groups, notes)
    issued = [None if i in strangers else each for i, each in enumerate(issued)]
    if vocabulary in ("nccl", "torch") and world_size(timeline) is None:
        notes += ended_together(members, processes, issued, progress, clocks, seqs, thresholds)
    if vocabulary == "none":
        lacking.append("NVTX ranges of the collectives (nsys profile -t cuda,nvtx)")
    unknown, without_step = [members[i] for i in strangers], [members[i] for i in by_step]
    ranks = []
    for m, process, each, done, seq, watched in zip(members, processes, issued, progress, seqs, seen, strict=True):
        info = timeline.captures[process.capture]
        ranks.append(
            RankEvidence(
                rank=m.rank,
                rank_source=m.source,
                source=info.path,
                entries=_entries(m, each, done, seq, groups, with_step=m not in without_step),
                wrapped=m in unknown or (each is not None and not all(each.exact)),
                end_ns=_on_one_clock(timeline, process.capture, info.stop_ns, clocks),
                activity=_activity(timeline, m, each, done, seq, watched),
                process=_facts(timeline, m, each),
            )
        )
    return Evidence(
        ranks=tuple(ranks),
        communicators=tuple(_communicator(timeline, group) for group in groups),
        names=names.as_tuple(),
        world_size=world_size(timeline),
        interrupted=_interrupted(seen, progress, asked=asked),
        notes=tuple(dict.fromkeys(notes)),
        lacking=tuple(lacking),
    )


def may_stand_still(timeline: Timeline, thresholds: Thresholds = DEFAULT) -> bool:
    """Whether the captures have any sign of a hang, at a glance: something undone, and a quiet end."""
    members = members_of(timeline)
    idle = (idle_of(timeline, timeline.processes[m.process], m.track, thresholds) for m in members)
    if not any(ns is not None and ns >= thresholds.still_least_ns for ns in idle):
        return False
    return any(left_undone(timeline, timeline.processes[m.process], m.track, thresholds) for m in members)


def members_of(timeline: Timeline) -> list[Member]:
    """Every rank: those with GPU work, and processes that name their rank without any."""
    found = [Member(rank=t.rank, source=t.rank_source, process=t.process, track=t) for t in timeline.ranks]
    taken = {m.rank for m in found}
    busy = {m.process for m in found}
    for i, process in enumerate(timeline.processes):
        if i not in busy and process.claim is not None and process.claim[0] not in taken:
            taken.add(process.claim[0])
            found.append(Member(rank=process.claim[0], source=process.claim[1], process=i, track=None))
    if not found:  # nobody names a rank, and there is no GPU work: whoever has ranges, in order
        with_ranges = [i for i, process in enumerate(timeline.processes) if len(process.ranges)]
        found = [Member(rank=n, source="order", process=i, track=None) for n, i in enumerate(with_ranges)]
    return sorted(found, key=lambda m: m.rank)


def _one_device_each(
    members: Sequence[Member], issued: Sequence[Issued | None], notes: list[str]
) -> list[Issued | None]:
    """Without the calls of processes that drive several devices: which device a call was for is not told."""
    shared = {m.process for m in members if sum(other.process == m.process for other in members) > 1}
    if shared:
        notes.append("a process drives several devices: its calls cannot be told apart by device")
    return [None if m.process in shared else each for m, each in zip(members, issued, strict=True)]


def _on_one_clock(
    timeline: Timeline, capture: int, stop_ns: int | None, clocks: dict[int, ClockFit | None]
) -> int | None:
    """When a capture ended, on the first one's clock: measured, else by the wall clocks; None without either."""
    if stop_ns is None:
        return None
    fit = clocks[capture]
    if fit is not None:
        return int(fit.to_reference(np.array([stop_ns], np.int64))[0])
    own, first = (timeline.captures[c].start_epoch_ns for c in (capture, next(iter(clocks))))
    return stop_ns + own - first if own is not None and first is not None else None


def _communicator(timeline: Timeline, group: Group) -> Communicator:
    name, ranks = group
    if ranks is None and name.startswith("0x"):
        told = {
            (size, own): track.rank for track in timeline.ranks for c, size, own in track.communicators
            if f"{c:#018x}" == name
        }  # fmt: skip
        sizes = {size for size, _ in told}
        if len(sizes) == 1 and len(told) == next(iter(sizes)):
            ranks = tuple(sorted(told.values()))
    return Communicator(name=name, description=None, ranks=ranks)


def _entries(
    member: Member,
    issued: Issued | None,
    progress: Progress | None,
    seq: Int64,
    groups: list[Group],
    *,
    with_step: bool,
) -> Entries:
    if issued is None or progress is None:
        none = np.empty(0, np.int64)
        small = np.empty(0, np.int32)
        return Entries(
            communicator=small, seq=none, op=small, elements_in=none, elements_out=none, dtype=small,
            state=np.empty(0, np.int8), step=none,
        )  # fmt: skip
    index = {group: i for i, group in enumerate(groups)}
    known = [index[named(group, member.rank, groups) or group] for group in issued.groups]
    return Entries(
        communicator=np.array(known, np.int32)[issued.group],
        seq=seq,
        op=issued.op,
        elements_in=issued.elements_in,
        elements_out=issued.elements_out,
        dtype=issued.dtype,
        state=progress.state,
        step=progress.step if with_step else np.full(len(issued), UNKNOWN, np.int64),
    )


def _activity(
    timeline: Timeline,
    member: Member,
    issued: Issued | None,
    progress: Progress | None,
    seq: Int64,
    seen: Observed,
) -> Activity:
    if issued is None or progress is None:
        return seen.activity(None)
    ranges = timeline.processes[member.process].ranges
    names = [timeline.names[int(ranges.name[row])] for row in issued.row[-1:]]
    stop_ns = timeline.captures[timeline.processes[member.process].capture].stop_ns
    left = np.flatnonzero((progress.state == State.ISSUED) | (progress.state == State.STARTED))
    if stop_ns is None:
        left = left[:0]
    pending = tuple(
        Pending(
            name=timeline.names[int(ranges.name[issued.row[at]])],
            communicator=issued.groups[int(issued.group[at])][0],
            seq=int(seq[at]),
            launched_ns=int(ranges.start[issued.row[at]]),
            before_end_ns=(stop_ns or 0) - int(ranges.start[issued.row[at]]),
            started=bool(progress.state[at] == State.STARTED),
        )
        for at in left[:PENDING_KEPT].tolist()
    )
    return replace(seen.activity(names[0] if names else None), pending=pending, pending_count=len(left))


def _facts(timeline: Timeline, member: Member, issued: Issued | None) -> ProcessFacts:
    process, track = timeline.processes[member.process], member.track
    thread = process.ranges.thread[issued.row[-1:]].tolist() if issued is not None else []
    return ProcessFacts(
        host=timeline.captures[process.capture].host,
        pid=process.pid,
        device=(track.device if track.gpu is None else track.gpu) if track is not None else None,
        pci=track.pci_bus if track is not None else None,
        thread=str(thread[0] & TID_MASK) if thread else None,
    )


def _interrupted(seen: Sequence[Observed], progress: Sequence[Progress | None], *, asked: bool) -> bool | None:
    """Whether the job stood still when its captures ended.

    It did if something was left undone and every rank was quiet; it did not if nothing was, or if no rank that left
    something undone was quiet. None where some were quiet and others were at work, and where somebody who asks why the
    job hangs has ranks that were quiet for a while. A launch without its kernel is a sign only where all captures are
    whole: one that was cut out of a longer one has such launches, and a quiet end.
    """
    whole = all(rank.whole for rank in seen)
    undone = []
    for rank, done in zip(seen, progress, strict=True):
        states = done.state if done is not None else np.empty(0, np.int8)
        launched = rank.launch_without_kernel or bool(np.any(states[-1:] == State.ISSUED))
        undone.append(rank.undone or bool(np.any(states == State.STARTED)) or (whole and launched))
    if not any(undone):
        return False
    if all(rank.quiet is Quiet.STILL for rank in seen):
        return True
    suspicious = Quiet.LONG if asked else Quiet.STILL
    return None if any(rank.quiet >= suspicious for rank, u in zip(seen, undone, strict=True) if u) else False
