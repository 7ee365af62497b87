"""Which parallelism collectives serve, held against simulated jobs that know it."""

from dataclasses import replace

import pytest
from lab.capture import write
from lab.job import Settings
from lab.loop import run

import tracekit
from tracekit.analysis import examine
from tracekit.metrics.parallelism import PARALLELISMS

PURPOSE = {"tp": "tensor", "a2a": "expert", "cp": "context", "pp": "pipeline"}
"""What the simulation's roles are for; all others move parameters and gradients."""
SMALL = Settings(ranks=8, layers=2, steps=3, seed=3)
PIPE = Settings(ranks=4, per_node=4, pp=2, micro=4, layers=2, steps=3, ag=500, rs=700)
JOBS = {
    "fsdp x tp": (replace(SMALL, tp=4), {}, "ZeRO-3 / FSDP x TP"),
    "fsdp x tp, sequence parallel": (replace(SMALL, tp=4, seq_par=True), {}, "ZeRO-3 / FSDP x TP"),
    "fsdp x tp, payloads": (replace(SMALL, tp=4, seq_par=True, payload=True), {}, "ZeRO-3 / FSDP x TP"),
    "ddp x tp": (replace(SMALL, tp=2, strategy="ddp"), {}, "DDP x TP"),
    "hsdp x tp": (replace(SMALL, tp=2, strategy="hsdp", per_node=4), {}, "HSDP x TP"),
    "experts": (replace(SMALL, moe=8), {}, "ZeRO-3 / FSDP x EP"),
    "experts on some ranks": (replace(SMALL, moe=4, payload=True), {}, "ZeRO-3 / FSDP x EP"),
    "ring": (replace(SMALL, cp=4), {}, "ZeRO-3 / FSDP x CP"),
    "pipeline": (PIPE, {}, "ZeRO-2 / SHARD_GRAD_OP x PP"),
    "pipeline of ddp": (replace(PIPE, strategy="ddp", payload=True), {}, "DDP x PP"),
    "fsdp": (SMALL, {}, "ZeRO-3 / FSDP"),
    "no prefetch": (SMALL, {"fwd_prefetch": False, "bwd_prefetch": False}, "ZeRO-3 / FSDP"),
    "on the compute stream": (SMALL, {"compute_stream": True}, "ZeRO-3 / FSDP"),
    "ddp": (replace(SMALL, strategy="ddp"), {"root_rs": 4000}, "DDP"),
    "every microbatch": (replace(SMALL, micro=3, rs=4000), {"defer": False}, "ZeRO-3 / FSDP"),
    "zero1": (replace(SMALL, strategy="zero1"), {}, "ZeRO-1"),
    "hsdp": (replace(SMALL, strategy="hsdp", per_node=4), {}, "HSDP"),
    "without phases": (replace(SMALL, layers=4, phases=False), {}, "ZeRO-3 / FSDP"),
    "ddp without phases": (replace(SMALL, strategy="ddp", phases=False), {"compute_stream": True}, "DDP"),
}


@pytest.fixture(scope="module", params=JOBS.values(), ids=JOBS)
def case(request, tmp_path_factory):
    settings, fault, strategy = request.param
    job = run(settings, fault)
    analysis, detail = examine(tracekit.open(*write(job, tmp_path_factory.mktemp("job"))))
    return job, strategy, analysis, detail


def test_each_collective_has_its_parallelism(case):
    job, _, _, detail = case
    for view in detail.views:
        ops = sorted((op for op in job.ranks[view.rank].ops if op.kind == "comm"), key=lambda op: (op.start, op.end))
        wanted = [PURPOSE.get(op.role, "data") for op in ops]
        assert [PARALLELISMS[i] for i in view.parallel.tolist()] == wanted


def test_the_strategy_names_all_dimensions(case):
    _, strategy, analysis, _ = case
    assert analysis.sharding.strategy == strategy


def test_no_cause_of_parameters_is_given_to_the_others(case):
    """What compute needs at once is not blamed on prefetch or order; healthy jobs lose next to nothing to these."""
    job, _, analysis, _ = case
    if job.fault or job.settings.strategy == "hsdp" or not any(op.role in PURPOSE for op in job.ranks[0].ops):
        pytest.skip("parameters and gradients alone have such causes")
    for rank in analysis.ranks:
        for step in rank.steps[1:]:
            causes = step.exposed_comm_by_cause
            blamed = sum(causes.get(name, 0) for name in ("no_prefetch", "serialized", "launched_late", "unknown"))
            assert blamed <= 0.005 * step.account.wall_ns, causes
