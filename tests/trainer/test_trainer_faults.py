"""What each fault does, on the culprit and nowhere else."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("nvtx", reason="needs nvtx")

import torch.distributed as dist  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from instrumented_trainer import annotate  # noqa: E402
from instrumented_trainer import faults as faults_module  # noqa: E402
from instrumented_trainer.config import FAULTS, parse  # noqa: E402
from instrumented_trainer.faults import DEFAULT_SIZE, Faults  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def fault(kind: str, *flags: str, rank: int = 1, world: int = 2) -> Faults:
    return Faults(parse(["--fault", kind, *flags]), rank, world, CPU)


def layers(injected: Faults) -> Any:
    made = torch.nn.ModuleList(torch.nn.Identity() for _ in range(3))
    injected.attach(made)
    return made


def forward(made: Any) -> None:
    x = torch.ones(2, 2)
    for layer in made:
        x = layer(x)


def test_every_fault_has_a_size() -> None:
    assert set(DEFAULT_SIZE) == set(FAULTS)


@pytest.mark.parametrize(("rank", "step", "products"), [(1, 2, 3 * 4), (1, 3, 3 * 4), (1, 1, 0), (0, 2, 0)])
def test_slow_rank_multiplies_matrices_in_every_layer_from_its_step_on(rank: int, step: int, products: int) -> None:
    slow = fault("slow-rank", "--fault-size", "4", rank=rank)
    made = layers(slow)
    slow.begin_step(step)
    with FlopCounterMode(display=False) as counter:
        forward(made)
    assert counter.get_total_flops() == products * 2 * 512**3


class Reads(TorchDispatchMode):
    """Counts tensors read by the host."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("step", "reads"), [(1, 0), (2, 6)])
def test_sync_reads_a_value_in_every_layer(step: int, reads: int) -> None:
    blocking = fault("sync", "--fault-size", "2")
    made = layers(blocking)
    blocking.begin_step(step)
    with Reads() as counted:
        forward(made)
    assert counted.count == reads


def test_a_data_stall_takes_its_milliseconds() -> None:
    stalled = fault("data-stall", "--fault-size", "50")
    stalled.begin_step(2)
    started = time.perf_counter()
    stalled.load_data()
    assert 0.05 <= time.perf_counter() - started < 0.5


def test_garbage_is_collected_by_each_rank_in_turn() -> None:
    collected = []
    gc.callbacks.append(lambda phase, info: collected.append(info["generation"]) if phase == "start" else None)
    try:
        rotating = fault("gc", "--fault-size", "10")
        counts = []
        for step in (2, 3, 4):
            before = collected.count(2)
            rotating.begin_step(step)
            counts.append(collected.count(2) - before)
    finally:
        gc.callbacks.pop()
    assert counts == [0, 1, 0]


def test_hang_sleeps_in_the_middle_layer_at_its_step_only() -> None:
    hanging = fault("hang", "--fault-size", "0.1")
    made = layers(hanging)
    spent = []
    for step in (1, 2, 3):
        hanging.begin_step(step)
        started = time.perf_counter()
        forward(made)
        spent.append(time.perf_counter() - started)
    assert spent[1] >= 0.1 > max(spent[0], spent[2])


def test_exit_leaves_without_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(faults_module.os, "_exit", left.append)
    leaving = fault("exit", "--fault-size", "9")
    for step in range(4):
        leaving.begin_step(step)
    assert left == [9]


def test_skip_step_skips_as_many_as_asked_for() -> None:
    skipping = fault("skip-step", "--fault-size", "2")
    skipped = []
    for step in range(6):
        skipping.begin_step(step)
        skipped.append(skipping.skips_step())
    assert skipped == [False, False, True, True, False, False]


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """What `all_reduce` was called with: elements and group."""
    calls: list[tuple[int, Any]] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group=None: calls.append((tensor.numel(), group)))
    monkeypatch.setattr(dist, "new_group", lambda group_desc: group_desc)
    return calls


@pytest.mark.parametrize(("kind", "culprit", "other"), [
    ("extra-collective", [(1024, None)], []),
    ("size-mismatch", [(2048, None)], [(1024, None)]),
    ("reorder", [(1024, "second"), (1024, "first")], [(1024, "first"), (1024, "second")]),
])  # fmt: skip
def test_wrong_collectives_differ_between_culprit_and_others(
    kind: str, culprit: Any, other: Any, reductions: list[tuple[int, Any]]
) -> None:
    for rank, expected in ((1, culprit), (0, other)):
        reductions.clear()
        wrong = fault(kind, rank=rank)
        for step in (1, 2, 3):
            wrong.begin_step(step)
            wrong.before_optimizer()
        assert reductions == expected


def test_a_slow_link_moves_many_times_the_bytes_before_each_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    monkeypatch.setattr(dist, "all_gather", lambda out, mine, group: gathered.append(sum(t.numel() for t in out)))
    monkeypatch.setattr(annotate, "_observers", [])
    slow = fault("slow-link", "--fault-size", "5", rank=0)
    layers(slow)
    (observer,) = annotate._observers
    collective = annotate.Collective(
        op="reduce_scatter", elements=128, bytes=256, dtype="bfloat16", group="world", group_size=2, seq=1,
        process_group=None,
    )  # fmt: skip
    for step in (1, 2):
        slow.begin_step(step)
        observer(collective)
    assert gathered == [128] * 4
