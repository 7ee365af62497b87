"""Simulated jobs as nsys exports, with the profiler's own troubles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.engine import Op, Rank
from lab.job import Job
from lab.kernels import short
from nsys_builder import KERNEL, MEMCPY, RUNTIME, SYNC, VIRTUAL_MACHINE, Export, global_pid

EPOCH = 1_760_000_000_000_000_000
STREAMS = ("main", "ag", "rs", "ar", "copy", "tp", "pp", "ep", "cp")


@dataclass(frozen=True, slots=True)
class Clock:
    """What a report's clock reads at a true time, and what the machine thinks of the time of day."""

    zero_ns: int
    drift_ppm: float
    epoch_ns: int

    def at(self, true_ns: int) -> int:
        return true_ns - self.zero_ns + round((true_ns - self.zero_ns) * self.drift_ppm / 1e6)


def _reports(job: Job) -> list[tuple[str, list[int], Clock]]:
    """(file name, ranks, clock) of each report."""
    s = job.settings
    drawn = random.Random(f"{s.seed} clocks")
    kept = s.only if s.only is not None else tuple(range(s.ranks))
    members: dict[int, list[int]] = {}
    for rank in kept:
        members.setdefault(rank if s.layout == "rank" else rank // s.per_node, []).append(rank)
    reports = []
    for number, (key, ranks) in enumerate(members.items()):
        name = f"report.rank{key}.sqlite" if s.layout == "rank" else f"node{key}.sqlite"
        zero = 1_000_000 if number == 0 else drawn.randrange(600_000_000)
        wrong = 0 if number == 0 else round(drawn.uniform(-1, 1) * s.clock_us * 1000)
        drift = 0.0 if number == 0 else drawn.uniform(-1, 1) * s.drift_ppm
        reports.append((name, ranks, Clock(zero, drift, EPOCH + zero + wrong)))
    return reports


def clocks_of(job: Job) -> dict[int, Clock]:
    """The clock of each captured rank."""
    return {rank: clock for _, ranks, clock in _reports(job) for rank in ranks}


def write(job: Job, folder: Path) -> list[Path]:
    """Write a job's reports."""
    return [_report(job, [job.ranks[r] for r in ranks], clock, folder / name) for name, ranks, clock in _reports(job)]


def _report(job: Job, ranks: Sequence[Rank], clock: Clock, path: Path) -> Path:
    s = job.settings
    export = Export("2024.6" if s.payload else "2023.4")
    ends = [op.end for rank in ranks for op in rank.ops if op.end is not None]
    ends += [call.end for rank in ranks for call in rank.calls if call.end is not None]
    stop = clock.at(max(ends)) + (45_000_000_000 if "hang" in job.fault else 25_000_000)
    export.add("ANALYSIS_DETAILS", globalVid=VIRTUAL_MACHINE, duration=stop, startTime=0, stopTime=stop)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=clock.epoch_ns, utcTime="", localTime="")
    node = ranks[0].number // s.per_node
    export.add(
        "TARGET_INFO_SYSTEM_ENV", globalVid=VIRTUAL_MACHINE, devStateName="Local (CLI)", name="Hostname", nameEnum=20,
        value=f"node{node}",
    )  # fmt: skip
    for device in range(min(s.per_node, s.ranks)):
        export.add(
            "TARGET_INFO_GPU", vmId=VIRTUAL_MACHINE, id=device, name="NVIDIA H100 80GB HBM3",
            busLocation=f"0000:{16 + device:02x}:00.0", cuDevice=device,
        )  # fmt: skip
    for rank in ranks:
        _Process(job, rank, clock, export, stop).write()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return export.write(path)


class _Process:
    """Writes one rank's rows."""

    def __init__(self, job: Job, rank: Rank, clock: Clock, export: Export, stop: int) -> None:
        s = job.settings
        self.job, self.rank, self.clock, self.export, self.stop = job, rank, clock, export, stop
        self.device = rank.number % s.per_node
        self.pid = 7000 + 13 * self.device + (40 * rank.number if s.layout == "rank" else 0)
        self.gpid = global_pid(self.pid)
        shift = random.Random(f"{s.seed} streams {rank.number}").randrange(5)
        self.streams = {name: 7 if name == "main" else 16 + shift + 4 * i for i, name in enumerate(STREAMS)}
        self.lost = self._lost()

    def _lost(self) -> set[int]:
        """Correlation ids of launch rows that the profiler dropped."""
        s = self.job.settings
        drawn = random.Random(f"{s.seed} lost {self.rank.number}")
        return {call.correlation for call in self.rank.calls if drawn.random() < s.lost}

    def write(self) -> None:
        export, rank = self.export, self.rank
        export.add("PROCESSES", globalPid=self.gpid, pid=self.pid, name="/usr/bin/python3.11")
        for op in rank.ops:
            if op.start is not None and op.end is not None:
                self._op(op)
        names = {call.name: export.string(call.name) for call in rank.calls}
        for call in rank.calls:
            if call.end is None or call.correlation in self.lost:
                continue
            export.add(
                RUNTIME, start=self.clock.at(call.start), end=self.clock.at(call.end), eventClass=0,
                globalTid=self._tid(call.thread), correlationId=call.correlation,
                nameId=names[call.name], returnValue=0,
            )  # fmt: skip
        for sync in rank.syncs:
            export.add(
                SYNC, start=self.clock.at(sync.start), end=self.clock.at(sync.end), deviceId=self.device, contextId=1,
                streamId=self.streams[sync.stream], correlationId=sync.correlation, globalPid=self.gpid, syncType=3,
                eventId=0,
            )  # fmt: skip
        self._ranges()

    def _tid(self, thread: str) -> int:
        return self.gpid | (self.pid if thread == "main" else self.pid + 211)

    def _op(self, op: Op) -> None:
        assert op.call is not None
        assert op.start is not None
        assert op.end is not None
        common: dict[str, object] = {
            "start": self.clock.at(op.start), "end": self.clock.at(op.end), "deviceId": self.device, "contextId": 1,
            "streamId": self.streams[op.stream], "correlationId": op.call.correlation, "globalPid": self.gpid,
        }  # fmt: skip
        if op.copy is not None:
            kind, source, target = op.copy
            self.export.add(MEMCPY, **common, bytes=op.bytes, copyKind=kind, srcKind=source, dstKind=target)
            return
        name = self.export.string(op.name)
        self.export.add(
            KERNEL, **common, demangledName=name, shortName=self.export.string(short(op.name)), gridX=op.grid,
            blockX=128,
        )  # fmt: skip

    def _ranges(self) -> None:
        export, payload = self.export, self.job.settings.payload
        export.range("NCCL", 1_000_000, None, pid=self.pid, domain=1, eventType=75)
        for item in self.rank.ranges:
            end = self.stop if item.end is None else self.clock.at(item.end)
            more: dict[str, object] = {}
            if item.payload is not None and payload:
                more["binaryData"] = item.payload
            tid = self.pid if item.thread == "main" else self.pid + 211
            domain = 1 if item.domain else 0
            export.range(item.name, self.clock.at(item.start), end, pid=self.pid, tid=tid, domain=domain, **more)
