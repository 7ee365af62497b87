"""Random training jobs with a fault, run until nothing moves, and the dumps that their ranks would write.

Data, tensor, expert and pipeline groups; sends and receives in batches or alone; work that overlaps. The simulator
knows who is at fault. It shares nothing with the product but the file format.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field, replace

SYNCHRONISING = {"_all_gather_base", "_reduce_scatter_base", "all_reduce", "all_to_all", "all_reduce_barrier"}
FAULTS = ("missing", "extra", "swapped", "size", "op", "dtype", "dead GPU", "dead host")


@dataclass(frozen=True)
class Call:
    """One call of a rank: a collective of a group, or a batch of messages in one."""

    group: str
    op: str = ""
    size: int = 0
    dtype: str = "BFloat16"
    messages: tuple[tuple[str, int, int], ...] = ()
    """(send or recv, the other rank, elements)."""
    batched: bool = False


@dataclass
class Shape:
    """Ranks are numbered tensor first, then data, then pipeline."""

    tensor: int
    data: int
    stages: int
    expert: bool
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """(description, ranks) by name."""

    def __post_init__(self):
        name = iter(range(1, 10_000))
        self.groups["0"] = ("default_pg", tuple(range(self.world)))
        for stage in range(self.stages):
            base = stage * self.tensor * self.data
            rows = [tuple(base + d * self.tensor + t for t in range(self.tensor)) for d in range(self.data)]
            for row in rows:
                self.groups[str(next(name))] = ("TENSOR", row)
            for column in zip(*rows, strict=True):
                self.groups[str(next(name))] = ("DATA", column)
            if self.expert:
                self.groups[str(next(name))] = ("EXPERT", tuple(rank for row in rows for rank in row))
        per_stage = self.tensor * self.data
        for rank in range(per_stage):
            members = tuple(rank + stage * per_stage for stage in range(self.stages))
            self.groups[str(next(name))] = ("PIPELINE", members)

    @property
    def world(self):
        return self.tensor * self.data * self.stages

    def of(self, rank, description):
        return next(name for name, (what, ranks) in self.groups.items() if what == description and rank in ranks)

    def ranks(self, name):
        return self.groups[name][1]


def program(shape, rank, rng_of_job):
    """What a rank calls; the same for all ranks of a stage but for their groups."""
    steps, microbatches, layers_of, batched, order = rng_of_job
    stage = rank // (shape.tensor * shape.data)
    layers = layers_of[stage]
    pipe, tensor, data = (shape.of(rank, what) for what in ("PIPELINE", "TENSOR", "DATA"))
    per_stage = shape.tensor * shape.data
    calls = []

    def messages(*wanted):
        wanted = tuple(
            (kind, rank + way * per_stage, size) for kind, way, size in wanted if 0 <= stage + way < shape.stages
        )
        if batched and wanted:
            calls.append(Call(pipe, messages=wanted, batched=True))
        else:
            calls.extend(Call(pipe, messages=(each,)) for each in wanted)

    def layer(at):
        if shape.tensor > 1:
            calls.append(Call(tensor, "_all_gather_base", 64 + at))
        if shape.expert:
            calls.append(Call(shape.of(rank, "EXPERT"), "all_to_all", 32 * shape.tensor * shape.data))
        if shape.tensor > 1:
            calls.append(Call(tensor, "_reduce_scatter_base", 64 + at))

    if stage == 0 and shape.tensor > 1:
        calls.append(Call(tensor, "all_reduce", 77))  # an embedding, on the first stage alone
    for _step in range(steps):
        if order == "fsdp" and shape.data > 1:
            calls.extend(Call(data, "_all_gather_base", 100 + at) for at in range(layers))
        for _ in range(microbatches):
            messages(("recv", -1, 512))
            for at in range(layers):
                layer(at)
            messages(("send", 1, 512))
        for _ in range(microbatches):
            messages(("recv", 1, 256))
            for at in reversed(range(layers)):
                layer(at)
            messages(("send", -1, 256))
        if shape.data > 1:
            calls.extend(
                Call(data, "_reduce_scatter_base" if order == "fsdp" else "all_reduce", 100 + at)
                for at in range(layers)
            )
        calls.append(Call("0", "all_reduce", 1, "Float"))
    calls.append(Call("0", "all_reduce_barrier", 1, "Float"))
    return calls


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int
    at: int


def put_in(programs, fault, rng):
    """The programs with a fault; None where the fault changes nothing."""
    calls = list(programs[fault.rank])
    call = calls[fault.at]
    if fault.kind == "missing":
        del calls[fault.at]
    elif fault.kind == "extra":
        calls.insert(fault.at, call)
    elif fault.kind == "swapped":
        if fault.at + 1 >= len(calls) or calls[fault.at + 1] == call:
            return None
        calls[fault.at : fault.at + 2] = [calls[fault.at + 1], call]
    elif call.messages:
        return None
    elif fault.kind == "size":
        calls[fault.at] = replace(call, size=call.size * 2)
    elif fault.kind == "op":
        calls[fault.at] = replace(call, op=rng.choice(sorted(SYNCHRONISING - {call.op})))
    elif fault.kind == "dtype":
        calls[fault.at] = replace(call, dtype="Half")
    return programs | {fault.rank: calls}


class Run:
    """Runs programs until nothing moves."""

    def __init__(self, shape, programs, faults, *, ahead, overlapped, eager):
        self.shape, self.programs, self.ahead = shape, programs, ahead
        self.overlapped, self.eager = overlapped, eager
        self.stop_host = {f.rank: f.at for f in faults if f.kind == "dead host"}
        self.stop_gpu = {f.rank: f.at for f in faults if f.kind == "dead GPU"}
        self.issued = dict.fromkeys(programs, 0)
        self.done = {rank: [False] * len(calls) for rank, calls in programs.items()}
        self.running = {rank: [False] * len(calls) for rank, calls in programs.items()}
        self.seq, self.place, self.numbers = {}, {}, {}
        counts = {}
        for rank, calls in programs.items():
            for i, call in enumerate(calls):
                if not call.messages:
                    counts[rank, call.group] = counts.get((rank, call.group), 0) + 1
                    self.seq[rank, i] = counts[rank, call.group]
                    self.place[rank, call.group, self.seq[rank, i]] = i
                for kind, peer, _ in call.messages:
                    way = (call.group, rank, peer) if kind == "send" else (call.group, peer, rank)
                    counts[rank, way] = counts.get((rank, way), 0) + 1
                    self.place[rank, way, counts[rank, way]] = i
                    self.numbers.setdefault((rank, i), []).append((way, counts[rank, way]))
        moved = True
        while moved:
            moved = self._issue() | self._start() | self._finish()

    def _issue(self):
        moved = False
        for rank, calls in self.programs.items():
            limit = min(len(calls), self.stop_host.get(rank, len(calls)))
            while self.issued[rank] < limit and self.issued[rank] < self.finished(rank) + self.ahead:
                self.issued[rank] += 1
                moved = True
        return moved

    def finished(self, rank):
        return next((i for i, done in enumerate(self.done[rank]) if not done), len(self.done[rank]))

    def _start(self):
        """A call starts when those before it are over: of its group, and all that do not run beside others."""
        moved = False
        for rank, calls in self.programs.items():
            open_groups = set()
            for i in range(self.finished(rank), self.issued[rank]):
                if self.done[rank][i]:
                    continue
                group = calls[i].group
                waits = group in open_groups or (group == "0" and open_groups)
                if not self.running[rank][i] and not waits and i < self.stop_gpu.get(rank, len(calls)):
                    self.running[rank][i] = moved = True
                if self.shape.groups[group][0] not in self.overlapped:
                    break
                open_groups.add(group)
        return moved

    def _finish(self):
        moved = False
        for rank, calls in self.programs.items():
            for i in range(self.finished(rank), self.issued[rank]):
                if self.running[rank][i] and not self.done[rank][i] and self._is_over(rank, i, calls[i]):
                    self.done[rank][i] = moved = True
        return moved

    def _is_over(self, rank, i, call):
        if not call.messages:
            seq = self.seq[rank, i]
            at = [self.place.get((other, call.group, seq)) for other in self.shape.ranks(call.group)]
            called = [
                None if j is None or not self.running[other][j] else self.programs[other][j]
                for other, j in zip(self.shape.ranks(call.group), at, strict=True)
            ]
            return all(other is not None and other == call for other in called)
        for (kind, peer, size), (way, number) in zip(call.messages, self.numbers[rank, i], strict=True):
            if kind == "send" and self.eager:
                continue
            j = self.place.get((peer, way, number))
            if j is None or not (self.running[peer][j] or self.done[peer][j]):
                return False
            sizes = [s for k, other, s in self.programs[peer][j].messages if other == rank and k != kind]
            if size not in sizes:
                return False
        return True

    @property
    def stuck(self):
        return any(not all(done) for done in self.done.values())


@dataclass(frozen=True)
class Recorder:
    """What the flight recorder is set to."""

    ring: int | None = None
    only_active: bool = False
    status: bool = True
    timing: bool = False
    empty: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()

    @property
    def complete(self):
        return self.ring is None and not self.only_active and not self.empty and not self.missing


def write_dumps(folder, run, recorder):
    """The dumps of all ranks that write one."""
    for rank in run.programs:
        if rank not in recorder.missing:
            content = dump_of(run, rank, recorder)
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))


def dump_of(run, rank, recorder):
    shape = run.shape
    own = {name: told for name, told in shape.groups.items() if rank in told[1]}
    ids = {name: i for i, name in enumerate(sorted(own, key=int))}
    entries, seqs, messages, last = [], {}, {}, {}
    for i, call in enumerate(run.programs[rank][: run.issued[rank]]):
        done, running = run.done[rank][i], run.running[rank][i]
        state = "completed" if done else "started" if running and recorder.timing else "scheduled"
        base = {
            "pg_id": ids[call.group],
            "process_group": (call.group, shape.groups[call.group][0]),
            "time_created_ns": 1_700_000_000_000_000_000 + i * 1000,
            "input_dtypes": [call.dtype],
            "output_dtypes": [call.dtype],
            "state": state,
            "retired": done,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "timeout_ms": 600_000,
            "frames": [],
        }
        members = shape.ranks(call.group)
        if call.messages:
            messages[call.group] = messages.get(call.group, 0) + 1
            for kind, peer, size in call.messages:
                arrow = "->" if kind == "send" else "<-"
                name = f"nccl:{kind} {members.index(rank)}{arrow}{members.index(peer)}"
                entries.append(base | _numbers(seqs, messages, call.group) | _sizes(name, size, size, p2p=True))
                if call.batched:
                    entries[-1]["state"], entries[-1]["retired"] = "scheduled", False
            if call.batched:
                entries.append(base | _numbers(seqs, messages, call.group) | _sizes("nccl:coalesced", 0, 0, p2p=True))
            last[call.group] = messages[call.group], messages[call.group] - (not done)
        else:
            seqs[call.group] = seqs.get(call.group, 0) + 1
            into, out = call.size, call.size
            if call.op == "_all_gather_base":
                out = call.size * len(members)
            elif call.op == "_reduce_scatter_base":
                into = call.size * len(members)
            entries.append(
                base | _numbers(seqs, messages, call.group) | _sizes(f"nccl:{call.op}", into, out, p2p=False)
            )
            before = last.get(call.group, (0, 0))
            last[call.group] = seqs[call.group], seqs[call.group] if done else before[1]
    for record, entry in enumerate(entries):
        entry["record_id"] = record
    if recorder.only_active:
        over = {
            (e["process_group"], e["p2p_seq_id"])
            for e in entries
            if e["profiling_name"] == "nccl:coalesced" and e["state"] == "completed"
        }
        entries = [
            e
            for e in entries
            if e["state"] != "completed" and not (e["is_p2p"] and (e["process_group"], e["p2p_seq_id"]) in over)
        ]
    elif recorder.ring is not None:
        entries = entries[-recorder.ring :]
    if rank in recorder.empty:
        entries = []
    status = {
        str(ids[name]): {
            "last_enqueued_collective": last.get(name, (0, 0))[0] or -1,
            "last_started_collective": -1,
            "last_completed_collective": last.get(name, (0, 0))[1] or -1,
        }
        for name in own
    }
    config = {name: {"name": name, "desc": what, "ranks": str(list(ranks))} for name, (what, ranks) in own.items()}
    with_status = recorder.status and rank not in recorder.empty
    return {"version": "2.10", "pg_config": config, "pg_status": status if with_status else {}, "entries": entries}


def _numbers(seqs, messages, group):
    seq, message = seqs.get(group, 0), messages.get(group, 0)
    return {"collective_seq_id": seq, "p2p_seq_id": message, "op_id": seq + message}


def _sizes(name, into, out, *, p2p):
    return {"profiling_name": name, "input_sizes": [[into]], "output_sizes": [[out]], "is_p2p": p2p}


def random_job(seed, *, faults=1):
    """(run, faults, the number of ranks at fault) of one random job; None where a fault changes nothing."""
    rng = random.Random(seed)
    while True:
        shape = Shape(rng.choice((1, 2, 2, 4)), rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2, 3)), rng.random() < 0.4)
        if 2 <= shape.world <= 16:
            break
    layers = [rng.randint(1, 2) for _ in range(shape.stages)]
    job = (rng.randint(1, 2), rng.randint(1, 2), layers, rng.random() < 0.5, rng.choice(("fsdp", "ddp")))
    programs = {rank: program(shape, rank, job) for rank in range(shape.world)}
    made = []
    for rank in rng.sample(range(shape.world), faults):
        fault = Fault(rng.choice(FAULTS), rank, rng.randrange(len(programs[rank]) - 1))  # not the last: jobs go on
        changed = put_in(programs, fault, rng)
        if changed is None:
            return None
        programs = changed
        made.append(fault)
    if len({fault.at for fault in made}) < len(made):
        return None  # two that do the same wrong thing at once are a majority of a small group: nobody can tell
    overlapped = frozenset(rng.choice(((), (), ("DATA",))))
    run = Run(shape, programs, made, ahead=rng.choice((1, 2, 4, 100)), overlapped=overlapped, eager=rng.random() < 0.5)
    return run, made


def random_recorder(seed, run, faults):
    """How the dumps of a job are written: half of them complete."""
    rng = random.Random(seed * 7 + 1)
    kind = rng.choice(("complete", "complete", "complete", "ring", "active", "active", "empty", "missing"))
    base = Recorder(status=rng.random() < 0.7, timing=rng.random() < 0.3)
    some = frozenset(rng.sample(sorted(run.programs), rng.randint(1, max(1, len(run.programs) // 4))))
    if kind == "ring":
        return replace(base, ring=rng.randint(3, 40))
    if kind == "active":
        return replace(base, only_active=True)
    if kind == "empty":
        return replace(base, empty=some, only_active=rng.random() < 0.5)
    if kind == "missing":
        return replace(base, missing=some | ({faults[0].rank} if rng.random() < 0.5 else frozenset()))
    return base
