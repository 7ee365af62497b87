"""Sharded training as host programs: what each rank launches, in which order, and what waits for what."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab import kernels as k
from lab.engine import Communicator, Meeting, Op, Program, Range, Rank, Simulation, Sync, Transfer

Fault = dict[str, Any]
Launch = Generator[Op, None, Op]
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
PAGEABLE, PINNED, DEVICE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A job. Times are microseconds of a transfer with all members there."""

    seed: int = 1
    strategy: str = "fsdp1"
    """fsdp1, zero3 (without FSDP's copies), zero2 (nothing is gathered), zero1, hsdp or ddp."""
    ranks: int = 4
    per_node: int = 8
    tp: int = 1
    seq_par: bool = False
    pp: int = 1
    moe: int = 0
    cp: int = 1
    micro: int = 1
    layers: int = 4
    stage_layers: tuple[int, ...] | None = None
    steps: int = 5
    ag: float = 900
    rs: float = 1100
    ar: float = 600
    root: float = 90
    tp_us: float = 160
    a2a: float = 350
    p2p: float = 120
    cp_us: float = 300
    moe_cv: float = 0.03
    extra_comm: bool = False
    """Each layer begins with a small all-gather and an all-reduce of another group."""
    shared_comm: bool = True
    layout: str = "node"
    """One report a node or a rank."""
    payload: bool = False
    lost: float = 0.0
    clock_us: float = 0.0
    drift_ppm: float = 0.0
    only: tuple[int, ...] | None = None
    comm_init: bool = False
    phases: bool = True
    """Whether ranges tell of forward, backward and optimizer."""
    step_names: str = "ProfilerStep#{}"
    spread: float = 0.001
    """Natural spread of the ranks' speeds."""


@dataclass(slots=True, repr=False)
class Job:
    """A simulated job."""

    settings: Settings
    fault: Fault
    ranks: list[Rank] = field(default_factory=list)
    communicators: dict[tuple[str, int], Communicator] = field(default_factory=dict)
    transfers: dict[tuple[object, ...], Transfer] = field(default_factory=lambda: defaultdict(Transfer))
    simulation: Simulation | None = None


def simulate(settings: Settings, fault: Fault, steps: Callable[[Host], Program]) -> Job:
    """Run a job, whose hosts do ``steps``."""
    job = Job(settings, fault)
    drawn = random.Random(settings.seed)
    job.ranks = [
        Rank(n, drawn.getrandbits(32), 1_000_000_000 + drawn.randrange(300_000)) for n in range(settings.ranks)
    ]
    job.simulation = Simulation(job.ranks)
    for rank in job.ranks:
        rank.program = steps(Host(job, rank))
    job.simulation.run()
    return job


class Host:
    """One rank's training loop."""

    def __init__(self, job: Job, rank: Rank) -> None:
        self.job, self.s, self.fault, self.rank = job, job.settings, job.fault, rank
        s, n = self.s, rank.number
        self.stage = n // (s.ranks // s.pp)
        self.speed = 1 + s.spread * random.Random(f"{s.seed} speed {n}").gauss(0, 1)
        self.layers = range(self._layers())
        self.micro = 0
        self.groups = self._groups()

    def _layers(self) -> int:
        counts = self.fault.get("stage_layers") or self.s.stage_layers
        return counts[self.stage] if counts else self.s.layers

    def _groups(self) -> dict[str, tuple[int, ...]]:
        """Members of each of this rank's groups."""
        s, n = self.s, self.rank.number
        stage = s.ranks // s.pp
        inner = s.tp * s.cp
        mine = [r for r in range(s.ranks) if r // stage == self.stage and r % s.tp == n % s.tp]
        if s.strategy == "hsdp":
            shard = [r for r in mine if r // s.per_node == n // s.per_node]
            replica = [r for r in mine if r % s.per_node == n % s.per_node]
        else:
            shard, replica = mine, []
        return {
            "dp": tuple(shard),
            "replica": tuple(replica),
            "world": tuple(range(s.ranks)),
            "tp": tuple(r for r in range(s.ranks) if r // s.tp == n // s.tp),
            "cp": tuple(r for r in range(s.ranks) if r // inner == n // inner and r % s.tp == n % s.tp),
            "ep": tuple(r for r in range(s.ranks) if r // max(s.moe, 1) == n // max(s.moe, 1)),
            "pp": tuple(r for r in range(s.ranks) if r % stage == n % stage),
        }

    # What the host launches.

    def kernel(self, kernel: k.Kernel, stream: str = "main", scale: float = 1.0) -> Launch:
        """A kernel that computes."""
        name, us, grid = kernel
        us *= 1 + 0.008 * self.rank.random.gauss(0, 1) * (us > 20)
        us *= scale * self._speed(stream)
        op = Op(self.rank.number, stream, name, round(us * 1000), grid=grid)
        return self._launch(op, "cudaLaunchKernel_v7000", 5)

    def _speed(self, stream: str) -> float:
        """How much longer compute takes on this rank, now."""
        n, step, fault, speed = self.rank.number, self.rank.step, self.fault, self.speed
        for name in ("slow", "slow2"):
            if name in fault and fault[name][0] == n:
                speed *= fault[name][1]
        if "slow_node" in fault and n // self.s.per_node == fault["slow_node"][0]:
            speed *= fault["slow_node"][1]
        if "throttle" in fault and n == fault["throttle"][0] and step >= fault["throttle"][1]:
            speed *= fault["throttle"][2]
        if "periodic" in fault and n == fault["periodic"][0] and step % fault["periodic"][1] == 0:
            speed *= fault["periodic"][2]
        if "seqlen" in fault:
            speed *= max(0.3, 1 + fault["seqlen"] * random.Random(f"{self.s.seed} length {n} {step}").gauss(0, 1))
        return speed

    def copy(self, stream: str, us: float, size: int, way: int, *, pinned: bool = True) -> Launch:
        """A copy between host and device."""
        host = PINNED if pinned else PAGEABLE
        ends = (host, DEVICE) if way == HOST_TO_DEVICE else (DEVICE, host)
        op = Op(self.rank.number, stream, "", round(us * 1000), kind="copy", bytes=size, copy=(way, *ends))
        return self._launch(op, "cudaMemcpyAsync_v3020", 5)

    def collective(
        self, stream: str, group: str, op: str, us: float, role: str, *, broken: bool = False, bytes_here: int = 0
    ) -> Launch:
        """A collective of one of this rank's groups."""
        members = self.groups[group]
        n, job = self.rank.number, self.job
        # The same members in the same role share a communicator.
        kind = {"rs": "dp"}.get(group, group) if self.s.shared_comm else f"{group} {op}" if group == "dp" else group
        made = job.communicators.get((kind, members[0]))
        if made is None:
            made = Communicator(self._hash(kind, members), members)
            job.communicators[kind, members[0]] = made
        number = made.counts[n]
        made.counts[n] += 1
        meeting = made.meetings.get(number)
        if meeting is None:
            drawn = random.Random(f"{self.s.seed} {kind} {members} {number}")
            ns = max(2_000, round(1000 * us * self._transfer(drawn, members, role)))
            meeting = made.meetings[number] = Meeting(made, op, ns, self._message_bytes(op, us, len(members)))
        meeting.broken |= broken
        made_op = Op(n, stream, k.NCCL[op], 0, kind="comm", role=role, meeting=meeting, grid=24)
        made_op.bytes = bytes_here or meeting.bytes
        return self._communicate(made_op)

    def _message_bytes(self, op: str, us: float, ranks: int) -> int:
        """What NCCL calls the message size, of a transfer at half of NVLink's bandwidth."""
        return round(us * (125_000 if op == "all_reduce" else 250_000 / ranks))

    def _hash(self, kind: str, members: Sequence[int]) -> int:
        return random.Random(f"{self.s.seed} {kind} {members}").getrandbits(64)

    def init_message(self) -> bytes:
        """NCCL's payload of the creation of the first communicator: its hash, ranks, and this rank."""
        members = self.groups["dp"]
        kind = "dp" if self.s.shared_comm else "dp all_gather"
        facts = (len(members), members.index(self.rank.number), self.rank.number % self.s.per_node, 0)
        packed = self._hash(kind, members).to_bytes(8, "little") + b"".join(n.to_bytes(4, "little") for n in facts)
        return _header(0, packed) + packed

    def _transfer(self, drawn: random.Random, members: Sequence[int], role: str) -> float:
        """How much longer a transfer takes than it should."""
        factor = 1 + 0.008 * drawn.gauss(0, 1)
        nodes = {r // self.s.per_node for r in members}
        if "link" in self.fault and len(nodes) > 1 and members[0] % self.s.per_node == self.fault["link"][0]:
            factor *= self.fault["link"][1]
        if "jitter" in self.fault and role in ("ag_f", "ag_b", "rs", "ar", "last"):
            factor *= max(1.0, drawn.lognormvariate(0, self.fault["jitter"]))
        return factor

    def _communicate(self, op: Op) -> Launch:
        rank = self.rank
        before = rank.now
        rank.now += 320 * (len(op.sends) + len(op.receives))
        op.ns += rank.random.randrange(900)
        launched = yield from self._launch(op, "cudaLaunchKernelExC_v11060", 13.4)
        self._annotate(op, before)
        return launched

    def _annotate(self, op: Op, before: int) -> None:
        assert op.call is not None
        rank = self.rank
        begun, ended = max(before, op.call.start - 1_800), (op.call.end or op.call.start) + 700
        if op.meeting is not None:
            called = next(op_name for op_name, kernel in k.NCCL.items() if kernel == op.name)
            payload = _message(called, op.meeting.communicator.hash, op.bytes)
            made = Range(k.NCCL_CALL[called], begun, ended, rank.thread, "NCCL", payload)
            rank.ranges.append(made)
            return
        rank.ranges.append(Range("ncclGroupStart", before, before + 250, rank.thread, "NCCL"))
        at = before + 320
        ranks = len(op.sends) + len(op.receives)
        for number in range(ranks):
            name, schema = ("ncclSend", 9) if number < len(op.sends) else ("ncclRecv", 10)
            packed = op.hash.to_bytes(8, "little") + op.bytes.to_bytes(8, "little") + number.to_bytes(8, "little")
            rank.ranges.append(Range(name, at, at + 260, rank.thread, "NCCL", _header(schema, packed) + packed))
            at += 320
        rank.ranges.append(Range("ncclGroupEnd", at, ended, rank.thread, "NCCL"))

    def exchange(
        self, group: str, us: float, role: str, sends: Sequence[object] = (), receives: Sequence[object] = ()
    ) -> Launch:
        """Sends and receives of one group call; a transfer is named by what both sides know of it."""
        known = self.job.transfers
        op = Op(
            self.rank.number,
            group,
            k.NCCL["send_recv"],
            round(us * 1000 * (1 + 0.02 * self.rank.random.gauss(0, 1))),
            kind="comm",
            role=role,
            grid=8,
            sends=tuple(known[self.rank.step, self.micro, key] for key in sends),
            receives=tuple(known[self.rank.step, self.micro, key] for key in receives),
            bytes=round(us * 250_000 / max(len(sends), len(receives), 1)),
            hash=self._hash(group, self.groups[group]),
        )
        return self._communicate(op)

    def _launch(self, op: Op, call: str, us: float) -> Launch:
        rank = self.rank
        op.step = rank.step
        oldest = rank.oldest()
        if oldest is not None and oldest.end is None:
            yield oldest
        made = rank.call(call, us)
        if oldest is not None and oldest.end is not None and made.end is not None and oldest.end > made.end:
            rank.now = made.end = oldest.end
        op.call = made
        assert self.job.simulation is not None
        self.job.simulation.launch(rank, op)
        return op

    def synchronize(self, op: Op, call: str = "cudaStreamSynchronize_v3020") -> Program:
        """Block the host until an operation has ended."""
        rank = self.rank
        made = rank.call(call, 1)
        made.end = None
        if op.end is None:
            yield op
        assert op.end is not None
        rank.now = max(rank.now, op.end + 20_000)
        made.end = rank.now
        rank.syncs.append(Sync(made.start + 300, rank.now - 300, op.stream, made.correlation))

    def hangs_here(self, layer: int) -> str | None:
        """How the job goes wrong at this layer of this step on this rank; None where it does not."""
        hang = self.fault.get("hang")
        if hang is None:
            return None
        kind, rank, step, at = hang
        here = (self.rank.number, self.rank.step, layer) == (rank, step, at)
        return kind if here else None


def _message(op: str, communicator: int, size: int) -> bytes:
    number = {"all_gather": 4, "all_reduce": 5, "reduce_scatter": 7}[op]
    packed = communicator.to_bytes(8, "little") + size.to_bytes(8, "little") + (b"" if number == 4 else bytes(8))
    return _header(number, packed) + packed


def _header(number: int, packed: bytes) -> bytes:
    return b"".join(n.to_bytes(8, "little") for n in (1, (1 << 24) + number, len(packed), 32))
