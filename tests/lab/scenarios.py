"""The scenarios: each fault at several strengths and in several jobs, and healthy ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lab.job import Settings
from lab.labels import Scenario

FSDP = Settings()
ZERO3 = Settings(strategy="zero3", ranks=8, shared_comm=False)
HSDP = Settings(strategy="hsdp", ranks=8, per_node=4, clock_us=3000)
DDP = Settings(strategy="ddp")
ZERO1 = Settings(strategy="zero1", ag=150)
ZERO2 = Settings(strategy="zero2", micro=2, rs=900)
PER_RANK = Settings(ranks=8, layout="rank", clock_us=2000)
PAYLOAD = replace(PER_RANK, payload=True)
TP = Settings(ranks=8, per_node=8, tp=4, layers=3, clock_us=1500, layout="rank")
TP2 = Settings(ranks=8, per_node=4, tp=2, layers=3, clock_us=1500)
PP = Settings(ranks=8, per_node=4, pp=4, micro=8, layers=2, steps=4, ag=500, rs=700, clock_us=1500)
MOE = Settings(ranks=8, moe=8, layers=3, clock_us=1500, layout="rank")
CP = Settings(ranks=8, cp=4, layers=3)

HEALTHY = {
    "fsdp": FSDP, "zero3": ZERO3, "hsdp": HSDP, "ddp": DDP, "zero2": ZERO2, "zero1": ZERO1, "per_rank": PER_RANK,
    "payload": PAYLOAD, "tp": TP, "tp2_nodes": TP2, "tp_seqpar": replace(TP, seq_par=True),
    "tp_seqpar_payload": replace(TP, seq_par=True, payload=True), "tp_payload": replace(TP, payload=True), "pp": PP,
    "pp_payload": replace(PP, payload=True), "moe": MOE, "moe_payload": replace(MOE, payload=True), "cp": CP,
    "lost50": replace(PER_RANK, lost=0.5), "lost50_payload": replace(PAYLOAD, lost=0.5),
    "lost50_tp": replace(TP, lost=0.5), "lost5": replace(PER_RANK, lost=0.05),
    "drift": replace(PER_RANK, drift_ppm=60), "clocks": replace(PER_RANK, clock_us=200_000, steps=6),
    "no_phases": replace(FSDP, phases=False), "init": replace(PAYLOAD, comm_init=True),
    "accumulation": replace(FSDP, micro=3, layers=3, steps=4), "large": replace(FSDP, ag=1700, rs=2100, layers=5),
    "small_ranks": replace(FSDP, ranks=2), "spread": replace(FSDP, spread=0.004),
}  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    """All of them; the seed makes each one differ in its noise."""
    seed = 100
    for scenario in _all():
        seed += 1
        settings = replace(scenario.settings, seed=seed)
        without = replace(scenario.without, seed=seed) if scenario.without else None
        yield replace(scenario, settings=settings, without=without)


def _all() -> Iterator[Scenario]:
    for name, settings in HEALTHY.items():
        yield Scenario(name=f"healthy_{name}", group="healthy", settings=settings)
    yield from _stragglers()
    yield from _transfers()
    yield from _exposed()
    yield from _hosts()
    yield from _structure()
    yield from _captures()
    yield from _hangs()


def _stragglers() -> Iterator[Scenario]:
    group = "stragglers"
    jobs = {
        "fsdp": FSDP,
        "zero3": ZERO3,
        "hsdp": HSDP,
        "ddp": DDP,
        "payload": PAYLOAD,
        "tp": TP,
        "no_phases": HEALTHY["no_phases"],
    }
    for name, job in jobs.items():
        for factor in (1.06, 1.15, 1.3) if name in ("fsdp", "hsdp") else (1.2,):
            yield Scenario(
                name=f"slow_{name}_{factor}", group=group, settings=job, fault={"slow": [job.ranks - 2, factor]}
            )
    for factor in (1.1, 1.25):
        yield Scenario(
            name=f"slow_two_{factor}", group=group, settings=ZERO3, fault={"slow": [2, factor], "slow2": [5, factor]}
        )
        yield Scenario(name=f"slow_node_{factor}", group=group, settings=HSDP, fault={"slow_node": [1, factor]})
    long = replace(FSDP, steps=10, layers=3)
    for start, factor in ((6, 1.4), (7, 1.2), (3, 1.3)):
        yield Scenario(
            name=f"throttle_{start}_{factor}", group=group, settings=long, fault={"throttle": [1, start, factor]}
        )
    for factor in (1.2, 1.5):
        yield Scenario(name=f"periodic_{factor}", group=group, settings=long, fault={"periodic": [2, 3, factor]})
    for us in (3000, 8000, 15000):
        yield Scenario(name=f"stall_{us}", group=group, settings=FSDP, fault={"stall": [1, us, "fwd"]})
        yield Scenario(name=f"stall_hsdp_{us}", group=group, settings=HSDP, fault={"stall": [5, us, "bwd"]})
        yield Scenario(name=f"data_rank_{us}", group=group, settings=FSDP, fault={"data_rank": [3, us]})
        yield Scenario(name=f"gc_{us}", group=group, settings=replace(FSDP, steps=8, layers=3), fault={"gc": us})
    for cv in (0.08, 0.15, 0.25):
        yield Scenario(name=f"seqlen_{cv}", group=group, settings=replace(FSDP, steps=8), fault={"seqlen": cv})


def _transfers() -> Iterator[Scenario]:
    for factor in (3, 6, 9):
        yield Scenario(
            name=f"link_{factor}", group="links", settings=replace(HSDP, ar=900), fault={"link": [1, factor]}
        )
        yield Scenario(
            name=f"link_payload_{factor}",
            group="links",
            settings=replace(HSDP, ar=900, payload=True),
            fault={"link": [2, factor]},
        )
    for cv in (0.5, 0.8, 1.1):
        yield Scenario(
            name=f"jitter_{cv}", group="links", settings=replace(FSDP, ag=1300, rs=2300), fault={"jitter": cv}
        )
        yield Scenario(
            name=f"jitter_zero3_{cv}", group="links", settings=replace(ZERO3, ag=1500, rs=2300), fault={"jitter": cv}
        )


def _exposed() -> Iterator[Scenario]:
    group = "exposed"
    for ag in (600, 1200, 2400):
        for name, job in (("fsdp", FSDP), ("zero3", ZERO3)):
            for way in ("bwd", "fwd"):
                yield Scenario(
                    name=f"no_{way}_prefetch_{name}_{ag}",
                    group=group,
                    settings=replace(job, ag=ag),
                    fault={f"{way}_prefetch": False},
                )
    for us in (1500, 3000, 6000):
        yield Scenario(name=f"root_rs_{us}", group=group, settings=FSDP, fault={"root_rs": us})
        yield Scenario(name=f"root_ag_{us}", group=group, settings=FSDP, fault={"root_ag": us})
        yield Scenario(
            name=f"root_rs_no_phases_{us}", group=group, settings=HEALTHY["no_phases"], fault={"root_rs": us}
        )
        yield Scenario(name=f"root_rs_ddp_{us}", group=group, settings=DDP, fault={"root_rs": us})
    for rs in (4000, 8000, 11500):
        for strategy in ("zero2", "fsdp1", "hsdp"):
            job = Settings(
                strategy=strategy, micro=3, steps=4, layers=3, rs=rs, ranks=8 if strategy == "hsdp" else 4, per_node=4
            )
            yield Scenario(name=f"accumulation_{strategy}_{rs}", group=group, settings=job, fault={"defer": False})
    for rs in (2500, 4000, 6000):
        job = replace(FSDP, rs=rs, ag=700)
        yield Scenario(
            name=f"shared_{rs}", group=group, settings=job, without=replace(job, shared_comm=False), kind="shared"
        )
    for ag in (500, 900, 1800):
        job = replace(ZERO1, ag=ag)
        yield Scenario(
            name=f"zero1_{ag}", group=group, settings=job, without=replace(job, ag=5), kind="zero1", judges_gain=False
        )
    for ag in (500, 900, 1500):
        yield Scenario(
            name=f"compute_stream_{ag}", group=group, settings=replace(FSDP, ag=ag), fault={"compute_stream": True}
        )
    for count in (40, 90):
        yield Scenario(name=f"tiny_{count}", group=group, settings=DDP, fault={"tiny": count}, judges_gain=False)


def _hosts() -> Iterator[Scenario]:
    group = "hosts"
    for us in (2500, 6000, 14000):
        yield Scenario(name=f"data_{us}", group=group, settings=FSDP, fault={"data": us})
        yield Scenario(name=f"data_hsdp_{us}", group=group, settings=HSDP, fault={"data": us})
        yield Scenario(name=f"pageable_{us}", group=group, settings=FSDP, fault={"pageable": us})
        yield Scenario(name=f"alloc_{us}", group=group, settings=FSDP, fault={"alloc": us})
    for factor in (25, 40, 60):
        yield Scenario(name=f"slow_host_{factor}", group=group, settings=FSDP, fault={"slow_host": factor})
    for name, job in (("fsdp", FSDP), ("ddp", DDP), ("zero3", replace(ZERO3, ag=1500))):
        yield Scenario(name=f"sync_{name}", group=group, settings=job, fault={"sync": True})
    for ag in (900, 1500, 2500):
        yield Scenario(name=f"limiter_{ag}", group=group, settings=replace(FSDP, ag=ag), fault={"limiter": True})


def _structure() -> Iterator[Scenario]:
    group = "structure"
    for factor in (1.3, 1.6, 2.0):
        yield Scenario(
            name=f"moe_hot_{factor}", group=group, settings=replace(MOE, payload=True), fault={"moe_hot": [2, factor]}
        )
        yield Scenario(name=f"moe_hot_plain_{factor}", group=group, settings=MOE, fault={"moe_hot": [5, factor]})
    for counts in ((2, 2, 3, 2), (3, 2, 2, 2), (2, 2, 2, 4)):
        yield Scenario(
            name=f"stages_{''.join(map(str, counts))}", group=group, settings=PP, fault={"stage_layers": list(counts)}
        )
    for factor in (1.15, 1.3):
        yield Scenario(
            name=f"pp_slow_{factor}",
            group=group,
            settings=replace(PP, ranks=16, per_node=8),
            fault={"slow": [6, factor]},
        )
        yield Scenario(
            name=f"pp_slow_payload_{factor}",
            group=group,
            settings=replace(PP, payload=True),
            fault={"slow": [3, factor]},
        )
        yield Scenario(
            name=f"tp_slow_payload_{factor}",
            group=group,
            settings=replace(TP, payload=True),
            fault={"slow": [5, factor]},
        )
        yield Scenario(
            name=f"tp_seqpar_slow_{factor}",
            group=group,
            settings=replace(TP, seq_par=True),
            fault={"slow": [2, factor]},
        )
        yield Scenario(name=f"cp_slow_{factor}", group=group, settings=CP, fault={"slow": [2, factor]})
    yield Scenario(name="tp_no_bwd_prefetch", group=group, settings=replace(TP, ag=1800), fault={"bwd_prefetch": False})
    yield Scenario(name="tp_root_rs", group=group, settings=TP, fault={"root_rs": 4000})


def _captures() -> Iterator[Scenario]:
    group = "captures"
    for name, job in (("", PER_RANK), ("_payload", PAYLOAD), ("_init", replace(PAYLOAD, comm_init=True))):
        yield Scenario(name=f"two_of_eight{name}", group=group, settings=replace(job, only=(0, 1)))
        yield Scenario(
            name=f"two_of_eight_hidden_slow{name}",
            group=group,
            settings=replace(job, only=(0, 1)),
            fault={"slow": [5, 1.25]},
        )
    yield Scenario(
        name="one_of_eight_hidden_slow", group=group, settings=replace(PAYLOAD, only=(0,)), fault={"slow": [5, 1.25]}
    )
    for lost in (0.1, 0.5):
        for name, job in (("plain", PER_RANK), ("payload", PAYLOAD)):
            yield Scenario(
                name=f"lost_{lost}_slow_{name}", group=group, settings=replace(job, lost=lost), fault={"slow": [3, 1.2]}
            )
    yield Scenario(name="drift_slow", group=group, settings=replace(PER_RANK, drift_ppm=60), fault={"slow": [3, 1.2]})


def _hangs() -> Iterator[Scenario]:
    for kind in ("missing", "inversion", "type", "network"):
        for name, job in (("fsdp", FSDP), ("payload", PAYLOAD), ("zero3", ZERO3)):
            settings = replace(job, steps=4, extra_comm=kind == "inversion")
            yield Scenario(
                name=f"hang_{kind}_{name}", group="hangs", settings=settings, fault={"hang": [kind, 2, 3, 1]}
            )
    yield Scenario(
        name="hang_size_payload", group="hangs", settings=replace(PAYLOAD, steps=4), fault={"hang": ["size", 2, 3, 1]}
    )
