"""The training loops: one step of each strategy, with what can go wrong in it."""

from __future__ import annotations

import random

from lab import kernels as k
from lab.engine import Op, Program, Range
from lab.job import DEVICE_TO_HOST, HOST_TO_DEVICE, Fault, Host, Job, Settings, simulate

GATHERED = ("fsdp1", "zero3", "hsdp")
SHARDED = (*GATHERED, "zero2")


def run(settings: Settings, fault: Fault | None = None) -> Job:
    """Simulate a job."""
    return simulate(settings, dict(fault or {}), steps)


def steps(host: Host) -> Program:
    """All steps of a rank."""
    rank, s, fault = host.rank, host.s, host.fault
    rank.slow_host = fault.get("slow_host", 1.0)
    if s.comm_init:
        start = rank.now - 400_000_000
        made = Range("ncclCommInitRank", start, start + 15_000_000, "main", "NCCL", host.init_message())
        rank.ranges.append(made)
    for step in range(s.steps):
        rank.step = step
        rank.push(s.step_names.format(step))
        _data(host)
        if fault.get("alloc"):
            _allocates(host)
        if s.pp > 1:
            yield from _pipeline(host)
        else:
            for micro in range(s.micro):
                host.micro = micro
                yield from _forward(host)
                yield from _backward(host, is_last=micro == s.micro - 1)
        yield from _optimizer(host)
        last = yield from host.copy("main", 1.6, 4, DEVICE_TO_HOST)
        yield from host.synchronize(last)
        rank.pop()


def _data(host: Host) -> None:
    """The next batch."""
    rank, fault = host.rank, host.fault
    if "data" in fault:
        rank.spend(fault["data"])
    if "data_rank" in fault and rank.number == fault["data_rank"][0]:
        rank.spend(fault["data_rank"][1])


def _allocates(host: Host) -> None:
    """The allocator gives memory back and asks for it again, with the GPU at rest."""
    rank, us = host.rank, host.fault["alloc"]
    for _ in range(3):
        rank.call("cudaFree_v3020", us / 6)
        rank.call("cudaMalloc_v3020", us / 6)


def _stalls(host: Host, where: str, layer: int) -> None:
    """What keeps the host from launching in the middle of a pass."""
    rank, fault, s = host.rank, host.fault, host.s
    if layer != len(host.layers) // 2:
        return
    if "stall" in fault and (rank.number, where) == (fault["stall"][0], fault["stall"][2]):
        rank.spend(fault["stall"][1])
    if "gc" in fault and where == "fwd":
        drawn = random.Random(f"{s.seed} gc {rank.step}")
        if drawn.randrange(s.ranks) == rank.number:
            rank.spend(fault["gc"])


def _gather(host: Host, us: float, role: str, *after: Op | None) -> Program:
    """Launch the all-gather of a unit."""
    stream = "main" if host.fault.get("compute_stream") else "ag"
    if stream != "main":
        host.rank.wait_event(stream, *after)
    if host.s.strategy in ("fsdp1", "hsdp"):
        yield from host.kernel(k.COPY_IN, stream)
    yield from host.collective(stream, "dp", "all_gather", us, role)


def _use(host: Host, gathered: Op | None) -> Program:
    """Let compute wait for a unit's parameters."""
    if gathered is None:
        return
    if gathered.stream != "main":
        host.rank.wait_event("main", gathered)
    if host.s.strategy in ("fsdp1", "hsdp"):
        yield from host.kernel(k.COPY_OUT)


def _last(host: Host, stream: str = "main") -> Op | None:
    return host.rank.last_on.get(stream)


def _forward(host: Host) -> Program:
    rank, s, fault = host.rank, host.s, host.fault
    slow_copy = fault.get("pageable")
    batch = yield from host.copy(
        "main" if slow_copy else "copy", slow_copy or 250, 1 << 24, HOST_TO_DEVICE, pinned=not slow_copy
    )
    if slow_copy:  # the call returns shortly before the copy ends
        yield from _returns_late(host, batch)
    if s.phases:
        rank.push("forward")
    gathers = s.strategy in GATHERED
    units: dict[int, Op | None] = {}
    root = None
    if gathers:
        yield from _gather(host, fault.get("root_ag", s.root), "root_ag")
        root = _last(host, "main" if fault.get("compute_stream") else "ag")
        if fault.get("fwd_prefetch", True):
            yield from _gather(host, s.ag, "first_ag")
            units[0] = _last(host, root.stream) if root else None
    yield from _use(host, root) if s.strategy != "fsdp1" else _wait_only(host, root)
    yield from host.kernel(k.EMBEDDING)
    ends: list[Op | None] = []
    for layer in host.layers:
        rank.push(f"layers.{layer}")
        _stalls(host, "fwd", layer)
        if s.extra_comm:
            yield from _two_groups(host, layer)
        if gathers:
            yield from _gather_forward(host, layer, units, ends)
        yield from _use(host, units.get(layer))
        yield from _layer_forward(host, layer)
        if fault.get("sync"):
            tail = _last(host)
            assert tail is not None
            yield from host.synchronize(tail)
        ends.append(_last(host))
        rank.pop()
    for kernel in k.HEAD:
        yield from host.kernel(kernel)
    if s.phases:
        rank.pop()


def _two_groups(host: Host, layer: int) -> Program:
    """A small all-gather and an all-reduce of another group, each of which compute waits for."""
    turns = [("ag", "dp", "all_gather"), ("ar", "world", "all_reduce")]
    if host.hangs_here(layer) == "inversion":
        turns.reverse()
    for stream, group, op in turns:
        host.rank.wait_event(stream, _last(host))
        made = yield from host.collective(stream, group, op, 150, "ep")
        host.rank.wait_event("main", made)
        yield from host.kernel(k.SMALL)


def _returns_late(host: Host, copy: Op) -> Program:
    """A call whose copy the host has to stage itself."""
    if copy.end is None:
        yield copy
    assert copy.end is not None
    assert copy.call is not None
    copy.call.end = host.rank.now = max(host.rank.now, copy.end - 20_000)


def _wait_only(host: Host, gathered: Op | None) -> Program:
    if gathered is not None and gathered.stream != "main":
        host.rank.wait_event("main", gathered)
    yield from ()


def _gather_forward(host: Host, layer: int, units: dict[int, Op | None], ends: list[Op | None]) -> Program:
    prefetches = host.fault.get("fwd_prefetch", True)
    wanted = layer + 1 if prefetches else layer
    if wanted >= len(host.layers):
        return
    if host.fault.get("limiter") and ends and ends[-1] is not None:
        yield from host.synchronize(ends[-1], "cudaEventSynchronize_v3020")
    yield from _gather(host, host.s.ag, "ag_f", ends[-1] if ends else None)
    units[wanted] = _last(host, "main" if host.fault.get("compute_stream") else "ag")


def _ring(host: Host, layer: int, where: str) -> Program:
    """A context-parallel ring: keys and values go round while attention works on the part that is there."""
    s, group = host.s, host.groups["cp"]
    me = group.index(host.rank.number)
    right, left = group[(me + 1) % len(group)], group[me - 1]
    kernel = k.FLASH if where == "fwd" else k.ATTENTION_BACK[1]
    arrived: Op | None = None
    for turn in range(s.cp):
        sending = None
        if turn < s.cp - 1:
            host.rank.wait_event("cp", arrived or _last(host))
            key = (where, layer, turn)
            sending = yield from host.exchange(
                "cp", s.cp_us, "cp", [(*key, host.rank.number, right)], [(*key, left, host.rank.number)]
            )
        yield from host.kernel(kernel, scale=1 / s.cp)
        host.rank.wait_event("main", sending)
        arrived = sending


def _tensor(host: Host, op: str, us: float) -> Program:
    """A collective of the tensor-parallel group, which stands between two matrix products."""
    host.rank.wait_event("tp", _last(host))
    made = yield from host.collective("tp", "tp", op, us, "tp")
    host.rank.wait_event("main", made)


def _split(host: Host, *, enter: bool) -> Program:
    """Enter or leave a tensor-parallel block."""
    s = host.s
    if s.tp == 1:
        return
    if s.seq_par:
        yield from _tensor(host, "all_gather" if enter else "reduce_scatter", 0.55 * s.tp_us)
    elif not enter:
        yield from _tensor(host, "all_reduce", s.tp_us)


def _tokens(host: Host, layer: int, where: str) -> float:
    """How many tokens this rank's experts have, as a multiple of the mean."""
    s = host.s
    drawn = random.Random(f"{s.seed} tokens {host.rank.number} {host.rank.step} {layer}")
    tokens = max(0.2, 1 + s.moe_cv * drawn.gauss(0, 1))
    hot = host.fault.get("moe_hot")
    return tokens * hot[1] if hot and hot[0] == host.rank.number else tokens


def _all_to_all(host: Host, key: str, layer: int) -> Program:
    s, me = host.s, host.rank.number
    others = [r for r in host.groups["ep"] if r != me]
    host.rank.wait_event("ep", _last(host))
    sends = [(key, layer, me, other) for other in others]
    made = yield from host.exchange("ep", s.a2a, "a2a", sends, [(key, layer, other, me) for other in others])
    host.rank.wait_event("main", made)


def _layer_forward(host: Host, layer: int) -> Program:
    s = host.s
    yield from host.kernel(k.NORM)
    yield from _split(host, enter=True)
    yield from host.kernel(k.QKV)
    yield from host.kernel(k.ROTARY)
    if s.cp > 1:
        yield from _ring(host, layer, "fwd")
    else:
        yield from host.kernel(k.FLASH)
    yield from host.kernel(k.PROJECTION)
    yield from _split(host, enter=False)
    yield from host.kernel(k.NORM)
    if s.moe:
        tokens = _tokens(host, layer, "fwd")
        yield from _all_to_all(host, "fwd dispatch", layer)
        yield from host.kernel(k.EXPERTS_UP, scale=tokens)
        yield from host.kernel(k.SILU, scale=tokens)
        yield from host.kernel(k.EXPERTS_DOWN, scale=tokens)
        yield from _all_to_all(host, "fwd combine", layer)
        return
    yield from _split(host, enter=True)
    yield from host.kernel(k.UP)
    yield from host.kernel(k.SILU)
    yield from host.kernel(k.DOWN)
    yield from _split(host, enter=False)


def _layer_backward(host: Host, layer: int) -> Program:
    s = host.s
    if s.moe:
        tokens = _tokens(host, layer, "bwd")
        yield from _all_to_all(host, "bwd combine", layer)
        for kernel in k.EXPERTS_BACK:
            yield from host.kernel(kernel, scale=tokens)
        yield from _all_to_all(host, "bwd dispatch", layer)
    else:
        yield from _split(host, enter=True)
        for kernel in k.DOWN_BACK:
            yield from host.kernel(kernel)
        yield from _split(host, enter=False)
        yield from host.kernel(k.UP_BACK)
    yield from host.kernel(k.NORM_BACK)
    yield from _split(host, enter=True)
    yield from host.kernel(k.ATTENTION_BACK[0])
    if s.cp > 1:
        yield from _ring(host, layer, "bwd")
    else:
        yield from host.kernel(k.ATTENTION_BACK[1])
    yield from host.kernel(k.ATTENTION_BACK[2])
    yield from _split(host, enter=False)
    yield from host.kernel(k.NORM_BACK)


def _backward(host: Host, *, is_last: bool) -> Program:
    rank, s, fault = host.rank, host.s, host.fault
    if s.phases:
        rank.push("backward")
    rank.thread = "autograd"
    rank.now += 12_000
    for kernel in k.HEAD_BACK:
        yield from host.kernel(kernel)
    units: dict[int, Op | None] = {}
    ends: dict[int, Op | None] = {}
    reduces = is_last or not fault.get("defer", True)
    for layer in reversed(host.layers):
        rank.push(f"layers.{layer}")
        _stalls(host, "bwd", layer)
        yield from _gather_backward(host, layer, units, ends)
        yield from _use(host, units.get(layer))
        if fault.get("recompute"):
            yield from _layer_forward(host, layer)
        yield from _layer_backward(host, layer)
        if s.strategy in ("fsdp1", "hsdp"):
            yield from host.kernel(k.CHUNK)
        ends[layer] = _last(host)
        if reduces:
            if host.hangs_here(layer) == "missing":
                yield Op(rank.number, "", "", 0)  # which never ends
            yield from _reduce(host, layer, s.rs, "last" if layer == 0 else "rs")
        rank.pop()
    yield from host.kernel(k.EMBEDDING_BACK)
    if s.strategy in ("fsdp1", "hsdp"):
        yield from host.kernel(k.CHUNK)
    if reduces:
        yield from _reduce(host, -1, fault.get("root_rs", s.root), "last")
    rank.thread = "main"
    rank.now += 6_000
    if s.phases:
        rank.pop()


def _gather_backward(host: Host, layer: int, units: dict[int, Op | None], ends: dict[int, Op | None]) -> Program:
    """The last layer stays gathered after forward; the others are gathered again."""
    s, fault, top = host.s, host.fault, len(host.layers) - 1
    if s.strategy not in GATHERED:
        return
    prefetches = fault.get("bwd_prefetch", True)
    wanted = layer - 1 if prefetches else layer
    if wanted < 0 or wanted == top:
        return
    if fault.get("limiter") and ends.get(layer + 1) is not None:
        yield from host.synchronize(ends[layer + 1], "cudaEventSynchronize_v3020")
    yield from _gather(host, s.ag, "ag_b", ends.get(layer + 1))
    units[wanted] = _last(host, "main" if fault.get("compute_stream") else "ag")


def _reduce(host: Host, layer: int, us: float, role: str) -> Program:
    rank, s, fault = host.rank, host.s, host.fault
    stream = "main" if fault.get("compute_stream") else "rs"
    if s.strategy in {"ddp", "zero1"}:
        if s.strategy == "ddp" and fault.get("tiny"):
            for _ in range(fault["tiny"]):
                rank.wait_event(stream, _last(host))
                yield from host.collective(stream, "dp", "all_reduce", 38, role)
            return
        if stream != "main":
            rank.wait_event(stream, _last(host))
        yield from host.collective(stream, "dp", "all_reduce", us, role)
        return
    if stream != "main":
        rank.wait_event(stream, _last(host))
    wrong = host.fault.get("hang", ("", 0, -1, 0))
    broken = wrong[0] in ("network", "type", "size") and (rank.step, layer) == tuple(wrong[2:])
    here = host.hangs_here(layer)
    op = "all_reduce" if here == "type" else "reduce_scatter"
    size = 12_345_678 if here == "size" else 0
    yield from host.collective(stream, "dp", op, us, role, broken=broken, bytes_here=size)
    if s.strategy == "hsdp":
        rank.wait_event("ar", _last(host, stream))
        us = s.ar if layer >= 0 else s.root
        yield from host.collective("ar", "replica", "all_reduce", us, "last" if role == "last" else "ar")
        yield from host.kernel(k.ACCUMULATE, "ar")
    else:
        yield from host.kernel(k.ACCUMULATE, stream)


def _optimizer(host: Host) -> Program:
    rank, s = host.rank, host.s
    if s.phases:
        rank.push("optimizer")
    rank.push("Optimizer.step#AdamW.step")
    rank.wait_event("main", *(op for name in ("rs", "ar") if (op := _last(host, name)) is not None))
    for _ in range(3):
        yield from host.kernel(k.ADAM)
    if s.strategy == "zero1":
        for _layer in range(len(host.layers)):
            rank.wait_event("ag", _last(host))
            yield from host.collective("ag", "dp", "all_gather", s.ag, "after")
        rank.wait_event("main", _last(host, "ag"))
    rank.pop()
    if s.phases:
        rank.pop()


def _pipeline(host: Host) -> Program:
    """One forward, one backward (1F1B), with sends and receives between the stages."""
    rank, s = host.rank, host.s
    gathers = s.strategy in GATHERED
    if gathers:
        for _layer in host.layers:
            yield from host.collective("ag", "dp", "all_gather", s.ag, "first_ag")
    first, final = host.stage == 0, host.stage == s.pp - 1
    ahead = min(s.pp - 1 - host.stage, s.micro)
    group = host.groups["pp"]
    me = rank.number
    before, after = (None if first else group[host.stage - 1]), (None if final else group[host.stage + 1])

    def transfer(sends: list[object], receives: list[object]) -> Program:
        if sends:
            rank.wait_event("pp", _last(host))
        if sends or receives:
            made = yield from host.exchange("pp", s.p2p, "pp", sends, receives)
            if receives:
                rank.wait_event("main", made)

    def act(i: int, source: int | None, target: int | None) -> list[object]:
        return [] if source is None or target is None else [("act", i, source, target)]

    def grad(i: int, source: int | None, target: int | None) -> list[object]:
        return [] if source is None or target is None else [("grad", i, source, target)]

    def forward(i: int) -> Program:
        if s.phases:
            rank.push("forward")
        if first:
            yield from host.copy("copy", 90, 1 << 24, HOST_TO_DEVICE)
            yield from host.kernel(k.EMBEDDING)
        for layer in host.layers:
            rank.push(f"layers.{layer}")
            if gathers and i == 0:
                rank.wait_event("main", _last(host, "ag"))
            yield from _layer_forward(host, layer)
            rank.pop()
        if final:
            for kernel in k.HEAD:
                yield from host.kernel(kernel, scale=0.2)
        if s.phases:
            rank.pop()

    def backward(i: int) -> Program:
        if s.phases:
            rank.push("backward")
        rank.thread = "autograd"
        if final:
            for kernel in k.HEAD_BACK:
                yield from host.kernel(kernel, scale=0.2)
        for layer in reversed(host.layers):
            rank.push(f"layers.{layer}")
            yield from _layer_backward(host, layer)
            if i == s.micro - 1:
                yield from _reduce(host, layer, s.rs, "last" if layer == 0 else "rs")
            rank.pop()
        if first:
            yield from host.kernel(k.EMBEDDING_BACK)
        rank.thread = "main"
        if s.phases:
            rank.pop()

    for i in range(ahead):
        yield from transfer([], act(i, before, me))
        yield from forward(i)
        yield from transfer(act(i, me, after), [])
    rest = s.micro - ahead
    if rest:
        yield from transfer([], act(ahead, before, me))
    for i in range(rest):
        yield from forward(ahead + i)
        yield from transfer(act(ahead + i, me, after), grad(i, after, me))
        yield from backward(i)
        more = i < rest - 1
        yield from transfer(grad(i, me, before), act(ahead + i + 1, before, me) if more else [])
    for i in range(rest, s.micro):
        yield from transfer([], grad(i, after, me))
        yield from backward(i)
        yield from transfer(grad(i, me, before), [])
