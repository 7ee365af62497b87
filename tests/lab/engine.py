"""A discrete-event simulation of hosts, streams and communicators: who waits for whom, and until when.

A rank is a program (a generator) that acts on its host. Hosts run ahead of their GPUs until a call blocks them or the
launch queue is full; a stream runs one operation at a time in the order of launch; a communicator runs one collective
at a time, in the order of launch, and only when all its members are there. All times are integer nanoseconds of one
true clock.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

QUEUE = 1024
"""Operations that a host can have launched before a launch blocks."""
ARRIVES, NEXT, AFTER_EVENT = 1_650, 1_000, 1_200
"""From the end of a launch call to the earliest start; between neighbours of a stream; after an event of another."""


@dataclass(slots=True, eq=False, repr=False)
class Op:
    """One GPU operation of one rank."""

    rank: int
    stream: str
    name: str
    ns: int
    """How long it takes once it may go on."""
    kind: str = "compute"
    step: int = 0
    call: Call | None = None
    grid: int = 132
    bytes: int = 0
    hash: int = 0
    """Of the communicator of sends and receives."""
    copy: tuple[int, int, int] | None = None
    """(copyKind, srcKind, dstKind) of a copy."""
    role: str = ""
    """What a communication operation is for."""
    meeting: Meeting | None = None
    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()
    start: int | None = None
    end: int | None = None
    waiting: int = 0
    ready: int = 0
    after: list[Op] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Meeting:
    """One collective: the operations of all its members, which go on when the last has come."""

    communicator: Communicator
    op: str
    ns: int
    bytes: int
    ops: dict[int, Op] = field(default_factory=dict)
    broken: bool = False
    """Never ends: its members do not agree, or the network is gone."""
    arrived: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Transfer:
    """What one rank sends another: the sender is done when it has sent, the receiver when it has come."""

    sent: int | None = None
    expected: Op | None = None


@dataclass(slots=True, eq=False, repr=False)
class Communicator:
    """A communicator, with the latest operation of each member in the order of launch."""

    hash: int
    ranks: tuple[int, ...]
    last: dict[int, Op] = field(default_factory=dict)
    meetings: dict[int, Meeting] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """A CUDA call; it never returned where its end is None."""

    name: str
    start: int
    end: int | None
    thread: str
    correlation: int


@dataclass(slots=True, eq=False, repr=False)
class Range:
    """An NVTX range; it was never left where its end is None."""

    name: str
    start: int
    end: int | None
    thread: str
    domain: str = ""
    payload: bytes | None = None


@dataclass(slots=True, eq=False, repr=False)
class Sync:
    """A record of a synchronisation."""

    start: int
    end: int
    stream: str
    correlation: int


Program = Generator[Op, None, None]
"""A host's doing; it yields an operation where it cannot go on before that one has ended."""


class Rank:
    """One process: its host's present, what it has launched, and its program."""

    def __init__(self, number: int, seed: int, at: int) -> None:
        self.number = number
        self.random = random.Random(seed)
        self.now = at
        self.thread = "main"
        self.step = -1
        self.slow_host = 1.0
        self.ops: list[Op] = []
        self.calls: list[Call] = []
        self.ranges: list[Range] = []
        self.syncs: list[Sync] = []
        self.open: list[Range] = []
        self.program: Program | None = None
        self.last_on: dict[str, Op] = {}
        self.events: dict[str, list[Op]] = defaultdict(list)
        """Operations whose end a stream waits for before what is launched on it next."""
        self._correlation = 1_000

    def spend(self, us: float, spread: float = 0.1) -> None:
        """Let the host be busy."""
        self.now += round(us * 1000 * (1 + spread * (2 * self.random.random() - 1)))

    def call(self, name: str, us: float, gap_us: float = 8.0) -> Call:
        """A CUDA call, with the host's work that leads to it."""
        self.spend(gap_us * self.slow_host, 0.25)
        start = self.now
        self.spend(us)
        self._correlation += 1
        made = Call(name, start, self.now, self.thread, self._correlation)
        self.calls.append(made)
        return made

    def push(self, name: str) -> None:
        self.now += 900
        made = Range(name, self.now, None, self.thread)
        self.ranges.append(made)
        self.open.append(made)

    def pop(self) -> None:
        self.now += 900
        self.open.pop().end = self.now

    def wait_event(self, stream: str, *ops: Op | None) -> None:
        """Let a stream wait for operations of others."""
        known = [op for op in ops if op is not None]
        if known:
            self.call("cudaStreamWaitEvent_v3020", 1.1, 6.0)
            self.events[stream].extend(known)

    def oldest(self) -> Op | None:
        """The operation that must have ended before the queue has room for another one."""
        return self.ops[-QUEUE] if len(self.ops) >= QUEUE else None


class Simulation:
    """Runs the programs of all ranks until nothing can go on."""

    def __init__(self, ranks: Iterable[Rank]) -> None:
        self.ranks = list(ranks)
        self._ended: deque[Op] = deque()
        self._blocked: dict[int, list[Rank]] = defaultdict(list)

    def run(self) -> None:
        ready = deque(self.ranks)
        while ready or self._ended:
            while self._ended:
                op = self._ended.popleft()
                for later in op.after:
                    self._one_less(later)
                ready.extend(self._blocked.pop(id(op), ()))
            if ready:
                self._go_on(ready.popleft())

    def _go_on(self, rank: Rank) -> None:
        assert rank.program is not None
        for op in rank.program:
            if op.end is None:
                self._blocked[id(op)].append(rank)
                return

    def launch(self, rank: Rank, op: Op) -> None:
        """Put an operation on its stream."""
        assert op.call is not None
        assert op.call.end is not None
        op.ready = op.call.end + ARRIVES
        before = [(other, AFTER_EVENT) for other in rank.events.pop(op.stream, ())]
        if op.stream in rank.last_on:
            before.append((rank.last_on[op.stream], NEXT))
        if op.meeting is not None:
            last = op.meeting.communicator.last
            if rank.number in last:
                before.append((last[rank.number], NEXT))
            last[rank.number] = op
            op.meeting.ops[rank.number] = op
        op.waiting = 1
        for other, gap in before:
            if other.end is None:
                op.waiting += 1
                other.after.append(op)
            else:
                op.ready = max(op.ready, other.end + gap)
        rank.last_on[op.stream] = op
        rank.ops.append(op)
        self._one_less(op)

    def _one_less(self, op: Op) -> None:
        op.waiting -= 1
        if op.waiting:
            return
        if op.start is None:
            op.start = op.ready
            if op.meeting is not None:
                self._meet(op, op.meeting)
                return
            self._exchange(op)
            if op.waiting:
                return
        self._end(op, op.ready + op.ns)

    def _meet(self, op: Op, meeting: Meeting) -> None:
        meeting.arrived += 1
        if meeting.arrived < len(meeting.communicator.ranks) or meeting.broken:
            return
        begun = max(other.start or 0 for other in meeting.ops.values())
        for other in meeting.ops.values():
            self._end(other, begun + meeting.ns + other.ns)

    def _exchange(self, op: Op) -> None:
        """Send what the operation sends, and wait for what it receives."""
        assert op.start is not None
        for transfer in op.sends:
            transfer.sent = op.start
            if transfer.expected is not None:
                transfer.expected.ready = max(transfer.expected.ready, op.start)
                self._one_less(transfer.expected)
        for transfer in op.receives:
            if transfer.sent is None:
                transfer.expected = op
                op.waiting += 1
            else:
                op.ready = max(op.ready, transfer.sent)

    def _end(self, op: Op, at: int) -> None:
        op.end = at
        for later in op.after:
            later.ready = max(later.ready, at + (NEXT if later.stream == op.stream else AFTER_EVENT))
        self._ended.append(op)
