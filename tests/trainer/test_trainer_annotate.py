"""The vocabulary: what is recorded, in which order, and that compiled graphs stay whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
nvtx = pytest.importorskip("nvtx", reason="needs nvtx")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from instrumented_trainer import annotate, strategies  # noqa: E402
from instrumented_trainer.config import parse  # noqa: E402
from instrumented_trainer.errors import TrainerError  # noqa: E402

pytestmark = pytest.mark.torch


class Recorder:
    """Stands in for nvtx: what was opened and closed, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.values: list[tuple[str, str, int | None]] = []
        self.marks: list[tuple[str, dict[str, Any]]] = []

    def push(self, name: str, domain: str, value: int | None) -> Any:
        self.events.append(f"+{name}")
        self.values.append((domain, name, value))
        recorder = self

        class Open:
            def __exit__(self, *_: object) -> None:
                recorder.events.append(f"-{name}")

        return Open()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(annotate, "_enabled", True)
    monkeypatch.setattr(nvtx, "get_domain", lambda name: object())
    monkeypatch.setattr(annotate, "_push", made.push)
    monkeypatch.setattr(nvtx, "start_range", lambda name, domain: made.push(name, domain, None))
    monkeypatch.setattr(nvtx, "end_range", lambda opened: opened.__exit__())
    monkeypatch.setattr(nvtx, "mark", lambda text, domain: made.marks.append((domain, json.loads(text))))
    return made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one, with annotated collectives."""
    for name in annotate._FUNCTIONS:
        if hasattr(dist, name):
            monkeypatch.setattr(dist, name, getattr(dist, name))  # put back afterwards
    monkeypatch.setattr(annotate, "_groups", annotate._Groups())
    monkeypatch.setattr(annotate, "_observers", [])
    annotate.collectives()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def step_of(strategy: strategies.Strategy) -> None:
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with annotate.step(3):
        with annotate.phase("forward"):
            loss = strategy.forward(tokens, tokens)
        with annotate.phase("backward"):
            strategy.backward(loss)
        with annotate.phase("optimizer"):
            strategy.step()


TWO_LAYERS = ["--layers", "2", "--dim", "16", "--heads", "2", "--hidden", "16", "--vocab", "32", "--seq", "8"]


def test_phases_hold_modules_in_the_order_of_their_work(recorder: Recorder) -> None:
    step_of(strategies.build(parse([*TWO_LAYERS, "--strategy", "single"]), torch.device("cpu"), None))
    assert recorder.events == [
        "+step", "+forward",
        "+fwd/embed", "-fwd/embed", "+fwd/layers.0", "-fwd/layers.0", "+fwd/layers.1", "-fwd/layers.1",
        "+fwd/head", "-fwd/head",
        "-forward", "+backward",
        "+bwd/head", "-bwd/head", "+bwd/layers.1", "-bwd/layers.1", "+bwd/layers.0", "-bwd/layers.0",
        "+bwd/embed", "-bwd/embed",
        "-backward", "+optimizer", "-optimizer", "-step",
    ]  # fmt: skip
    assert recorder.values[0] == ("tracekit", "step", 3)
    assert {domain for domain, _, _ in recorder.values} == {"tracekit"}


def test_recomputation_is_annotated_inside_the_backward_of_its_layer(recorder: Recorder) -> None:
    flags = [*TWO_LAYERS, "--strategy", "single", "--activation-checkpointing"]
    step_of(strategies.build(parse(flags), torch.device("cpu"), None))
    inside = recorder.events[recorder.events.index("+bwd/layers.1") : recorder.events.index("-bwd/layers.1")]
    assert inside == ["+bwd/layers.1", "+recompute/layers.1", "-recompute/layers.1"]


@pytest.fixture
def rank_of_two(alone: None) -> None:
    """Rank 0 of two whose collectives do nothing."""
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)


@pytest.mark.usefixtures("rank_of_two")
def test_the_collectives_of_fsdp2_lie_in_the_ranges_of_their_layer(recorder: Recorder) -> None:
    config = parse([*TWO_LAYERS, "--strategy", "fsdp2", "--reshard", "always"])
    step_of(strategies.build(config, torch.device("cpu"), strategies.mesh_of(config, "cpu", 2)))
    opened: list[str] = []
    places = []
    for event in recorder.events:
        if event.startswith("-"):
            opened.remove(event[1:])
            continue
        opened.append(event[1:])
        if event in ("+all_gather", "+reduce_scatter"):
            places.append((event[1:], next((name for name in opened[::-1] if "wd/" in name), opened[1])))
    # The root unit is gathered where forward and the loss begin; in backward FSDP2 gathers one unit ahead.
    assert places == [
        ("all_gather", "forward"), ("all_gather", "fwd/layers.0"), ("all_gather", "fwd/layers.1"),
        ("all_gather", "bwd/head"), ("all_gather", "bwd/head"), ("all_gather", "bwd/layers.1"),
        ("reduce_scatter", "bwd/layers.1"), ("reduce_scatter", "bwd/layers.0"), ("reduce_scatter", "bwd/embed"),
    ]  # fmt: skip


@pytest.mark.usefixtures("alone")
def test_a_collective_tells_op_bytes_dtype_group_and_sequence_number(recorder: Recorder) -> None:
    x = torch.zeros(6, dtype=torch.bfloat16)
    group = dist.new_group([0], group_desc="pair")
    dist.all_reduce(x)
    dist.broadcast(x, src=0, group=group)
    dist.reduce_scatter([torch.empty(6)][0], [torch.zeros(6)])
    dist.all_gather([torch.empty(6)], torch.zeros(6), group=group)
    dist.barrier()
    found = [value for value in recorder.values if value[0].startswith("tracekit.comm")]
    assert found == [
        ("tracekit.comm", "all_reduce", 12), ("tracekit.comm.detail", "world/bfloat16", 1),
        ("tracekit.comm", "broadcast", 12), ("tracekit.comm.detail", "pair/bfloat16", 1),
        ("tracekit.comm", "reduce_scatter", 24), ("tracekit.comm.detail", "world/float32", 2),
        ("tracekit.comm", "all_gather", 24), ("tracekit.comm.detail", "pair/float32", 2),
        ("tracekit.comm", "barrier", 0), ("tracekit.comm.detail", "world/none", 3),
    ]  # fmt: skip
    assert recorder.events[:4] == ["+all_reduce", "+world/bfloat16", "-world/bfloat16", "-all_reduce"]


@pytest.mark.usefixtures("alone")
def test_groups_are_marked_with_their_members_and_told_apart(recorder: Recorder) -> None:
    for _ in range(2):
        dist.all_reduce(torch.zeros(1), group=dist.new_group([0], group_desc="mesh_shard"))
    marks = [fact for domain, fact in recorder.marks if domain == "tracekit.comm"]
    assert marks == [{"group": "shard", "ranks": [0]}, {"group": "shard#2", "ranks": [0]}]


@pytest.mark.usefixtures("alone")
def test_a_failing_collective_closes_its_ranges(recorder: Recorder) -> None:
    with pytest.raises(Exception, match=r"group|tensor|list"):
        dist.all_gather([torch.empty(5)], torch.zeros(2, 2, dtype=torch.int32))
    assert recorder.events == ["+all_gather", "+world/float32", "-world/float32", "-all_gather"]


def test_what_a_rank_was_in_when_it_lost_another_stays_open(recorder: Recorder) -> None:
    layer = torch.nn.Identity()
    layer.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("Connection closed by peer [::1]:1")))
    annotate.modules({"layers.0": layer})
    with pytest.raises(RuntimeError), annotate.step(0), annotate.phase("forward"):
        layer(torch.zeros(1))
    assert recorder.events == ["+step", "+forward", "+fwd/layers.0"]


def test_after_any_other_error_ranges_are_closed(recorder: Recorder) -> None:
    with pytest.raises(IndexError), annotate.step(0), annotate.phase("forward"):
        raise IndexError
    assert recorder.events == ["+step", "+forward", "-forward", "-step"]


def test_the_mark_tells_who_and_what_runs(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotate, "_groups", annotate._Groups())
    monkeypatch.setenv("LOCAL_RANK", "0")
    annotate.describe(strategy="ddp", batch=4)
    ((domain, fact),) = recorder.marks
    assert domain == "tracekit"
    assert {key: fact[key] for key in ("rank", "world_size", "local_rank", "strategy", "batch")} == {
        "rank": 0, "world_size": 1, "local_rank": 0, "strategy": "ddp", "batch": 4,
    }  # fmt: skip
    assert fact["pid"] > 0


def test_ranges_leave_a_compiled_graph_whole(recorder: Recorder) -> None:
    def annotated(x: Any) -> Any:
        with annotate.span("inside"):
            return torch.sin(x) + 1

    compiled = torch.compile(annotated, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    assert recorder.events == []


def test_switched_off_nothing_is_recorded(recorder: Recorder) -> None:
    annotate.enable(False)
    try:
        with annotate.step(1), annotate.phase("forward"):
            annotate.describe()
    finally:
        annotate.enable(True)
    assert recorder.events == []
    assert recorder.marks == []


class DummyDomain:
    """What newer nvtx hands out when the profiler does not answer."""


def test_an_nvtx_that_this_nsys_does_not_see_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/somewhere")
    monkeypatch.setattr(nvtx, "get_domain", lambda name: DummyDomain())
    with pytest.raises(TrainerError) as refused:
        annotate.check_profiler()
    assert 'pip install "nvtx==0.2.11"' in refused.value.line()


def test_without_a_profiler_or_with_a_good_one_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    with monkeypatch.context() as patched:
        patched.setattr(nvtx, "get_domain", lambda name: DummyDomain())
        annotate.check_profiler()
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/somewhere")
    monkeypatch.setattr(nvtx, "get_domain", lambda name: object())
    annotate.check_profiler()


def test_payloads_of_one_name_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real nvtx: one cached object for a name, whose payload is set before each use."""
    seen: list[int] = []

    monkeypatch.setattr(nvtx.annotate, "__enter__", lambda self: seen.append(self.attributes.payload) or self)
    monkeypatch.setattr(nvtx.annotate, "__exit__", lambda self, *_: False)
    monkeypatch.setattr(annotate, "records", lambda: True)
    for number in (1, 2**40):
        with annotate.step(number):
            pass
    if type(nvtx.get_domain(annotate.DOMAIN)).__name__ == "DummyDomain":
        pytest.skip("this nvtx records nothing without a profiler")
    assert seen == [1, 2**40]
