"""What a diagnosis of a simulated job must say, may say and must not say, from the simulation itself.

``must_not`` holds a rule only where its evidence is certainly absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab import truth
from lab.capture import clocks_of
from lab.job import Fault, Job, Settings

RULES = (
    *(f"TK{n}" for n in range(100, 115)),
    *(f"TK{n}" for n in range(201, 210)),
    *(f"TK{n}" for n in range(301, 308)),
    *(f"TK{n}" for n in range(401, 415)),
    *(f"TK{n}" for n in range(901, 910)),
)
SURE, NOTICEABLE = 0.03, 0.003
"""Shares of a step that a fault costs: from the first on it must be named, below the second it must not."""

NAMED: dict[str, tuple[str, ...]] = {
    "slow": ("TK201",), "slow2": ("TK201",), "slow_node": ("TK201",), "throttle": ("TK201",), "periodic": ("TK201",),
    "stall": ("TK202", "TK203"), "data_rank": ("TK202", "TK203", "TK405"), "gc": ("TK204", "TK406"),
    "link": ("TK207",), "jitter": ("TK209",), "bwd_prefetch": ("TK102",), "fwd_prefetch": ("TK101",),
    "root_rs": ("TK107",), "root_ag": ("TK106",), "defer": ("TK111",), "moe_hot": ("TK201", "TK205", "TK206"),
    "stage_layers": ("TK206",), "data": ("TK405",), "sync": ("TK402",), "limiter": ("TK404", "TK402"),
    "slow_host": ("TK401",), "compute_stream": ("TK104",), "pageable": ("TK408",), "zero1": ("TK110",),
    "tiny": ("TK105",), "recompute": ("TK413",), "seqlen": ("TK205",), "shared": ("TK103",), "alloc": ("TK403",),
}  # fmt: skip
"""The rules of which one has to name a fault."""
BESIDE: dict[str, tuple[str, ...]] = {
    "slow": ("TK203", "TK208", "TK103"), "slow2": ("TK203", "TK208", "TK103"),
    "slow_node": ("TK203", "TK208", "TK103", "TK207"), "throttle": ("TK103", "TK203", "TK205", "TK208"),
    "periodic": ("TK103", "TK203", "TK205", "TK208", "TK204"), "stall": ("TK103", "TK204", "TK401", "TK405", "TK406"),
    "data_rank": ("TK103", "TK204", "TK401", "TK406"), "gc": ("TK103", "TK202", "TK203", "TK401", "TK405", "TK207"),
    "link": ("TK203", "TK112", "TK109", "TK209"), "jitter": ("TK103", "TK203", "TK207"),
    "bwd_prefetch": ("TK103",), "fwd_prefetch": (), "root_rs": (), "root_ag": ("TK101",), "defer": ("TK103", "TK112"),
    "moe_hot": ("TK203", "TK208"), "stage_layers": ("TK908",), "data": ("TK401", "TK406"),
    "sync": ("TK401", "TK101", "TK102", "TK404"), "limiter": ("TK101", "TK102", "TK401"),
    "slow_host": ("TK101", "TK102", "TK203", "TK406"), "compute_stream": ("TK101", "TK102", "TK105", "TK108"),
    "pageable": ("TK401", "TK405", "TK402"), "zero1": (), "tiny": ("TK108",), "recompute": (),
    "seqlen": ("TK103", "TK201", "TK203", "TK204", "TK208"), "shared": ("TK102",), "alloc": ("TK401", "TK405"),
}  # fmt: skip
"""Further rules that a fault gives reason for."""
HANGS = {
    "missing": ("TK301", "missing_rank"), "inversion": ("TK305", "order_inversion"),
    "type": ("TK302", "type_mismatch"), "size": ("TK303", "size_mismatch"), "network": ("TK306", "unfinished"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A job with a fault, or without one, and the job without the fault."""

    name: str
    group: str
    settings: Settings
    fault: Fault = field(default_factory=dict)
    without: Settings | None = None
    """Settings of the job without the fault, where it lies in the settings."""
    kind: str | None = None
    """The fault, where it lies in the settings."""
    judges_gain: bool = True

    @property
    def kinds(self) -> list[str]:
        return [*self.fault, *([self.kind] if self.kind else [])]

    @property
    def healthy(self) -> bool:
        return not self.kinds


def label(scenario: Scenario, job: Job, twin: Job | None, captures: list[str]) -> dict[str, Any]:
    """The labels of a scenario, given the same job without its fault."""
    hang = scenario.fault.get("hang")
    exposed = truth.exposed_by_role(job) if hang is None else {}
    gain = truth.mean_step(job) - truth.mean_step(twin) if twin is not None else None
    share = gain / truth.mean_step(job) if gain is not None else 0.0
    must, must_any, may = _wanted(scenario, exposed, share)
    if hang is not None:
        must = [HANGS[hang[0]][0]]
        may |= {rule for rule in RULES if rule[2] in "1249"} - {"TK206", "TK208"}
    must_not = sorted(set(RULES) - set(must) - {rule for choice in must_any for rule in choice} - may)
    straggler, judged, also = _straggler(scenario, share)
    waited, caused = truth.waits(job)
    clocks = clocks_of(job)
    return {
        "captures": captures,
        "must": must, "must_any": must_any, "may": sorted(may), "must_not": must_not,
        "straggler_rank": straggler, "straggler_judged": judged and hang is None, "straggler_also": also,
        "hang": _hang(scenario), "step_time_ns": truth.step_time(job) if hang is None else None,
        "gain_ns": round(gain) if gain is not None else None,
        "gain_judged": _gain_is_judged(scenario, gain, share) and bool(must or must_any),
        "group": scenario.group, "fault": scenario.fault, "share": round(share, 4),
        "features": {"exposed": exposed, "I": round(waited, 4), "P": {r: round(p, 3) for r, p in caused.items()}},
        "totals": {str(r): truth.totals(job.ranks[r], clock.at) for r, clock in clocks.items() if hang is None},
        "clock": {str(r): {"offset_ns": clock.at(0), "drift_ppm": clock.drift_ppm} for r, clock in clocks.items()},
    }  # fmt: skip


def _gain_is_judged(scenario: Scenario, gain: float | None, share: float) -> bool:
    return scenario.judges_gain and gain is not None and share >= SURE and scenario.settings.only is None


def _wanted(scenario: Scenario, exposed: dict[str, float], share: float) -> tuple[list[str], list[list[str]], set[str]]:
    """(rules that must fire, sets of which one must, rules that may)."""
    s = scenario.settings
    must, must_any, may = _of_job(scenario, exposed)
    for kind in scenario.kinds:
        if kind == "hang":
            continue
        may |= set(BESIDE[kind])
        names = NAMED[kind]
        if s.only is not None:
            may |= set(names) - (set(names) if kind in OF_OTHERS else set())
        elif share < SURE:
            may |= set(names)
        elif len(names) > 1:
            must_any.append(list(names))
        elif names[0] not in must:
            must.append(names[0])
    return must, must_any, may - {*must, *(rule for choice in must_any for rule in choice)}


def _of_job(scenario: Scenario, exposed: dict[str, float]) -> tuple[list[str], list[list[str]], set[str]]:
    """What the job gives reason for whatever its fault."""
    s = scenario.settings
    gathers = s.strategy in ("fsdp1", "zero3", "hsdp")
    blocked = s.shared_comm and exposed.get("ag_f", 0) + exposed.get("ag_b", 0) >= 0.005
    every_microbatch = s.micro > 1 and not scenario.fault.get("defer", True)
    reasons = (
        (("TK402", "TK906", "TK107"), True),
        (("TK100",), sum(exposed.values()) >= 0.015),
        (("TK106",), gathers and s.tp == 1),
        (("TK114",), gathers),
        (("TK103",), blocked),
        (("TK112",), s.strategy == "hsdp" or every_microbatch),
        (("TK110",), s.strategy == "zero1"),
        (("TK908",), s.pp > 1 and s.clock_us > 0),
        (("TK206",), s.pp > 1),
        (("TK405", "TK406", "TK407", "TK408", "TK907"), s.lost > 0),
        (("TK904",), s.only is not None),
    )
    may = {rule for rules, holds in reasons if holds for rule in rules}
    must = ["TK907"] if s.lost >= 0.1 else []
    if s.only is not None and s.comm_init:  # the making of a communicator tells how many ranks there are
        must.append("TK904")
    within_layers = s.tp > 1 and exposed.get("tp", 0) >= 0.05
    return must, [["TK100", "TK105", "TK109", "TK116"]] if within_layers else [], may


OF_OTHERS = ("slow", "slow2", "slow_node", "throttle", "periodic", "stall", "data_rank", "link", "jitter")
"""Faults of one rank, of which the captures of others cannot tell."""


def _straggler(scenario: Scenario, share: float) -> tuple[list[int] | int | None, bool, list[int]]:
    """(who must be named, whether it is judged, who may be named beside)."""
    s, fault = scenario.settings, scenario.fault
    ranks = [fault[name][0] for name in ("slow", "slow2", "throttle", "stall", "data_rank", "moe_hot") if name in fault]
    if "slow_node" in fault:
        ranks = [r for r in range(s.ranks) if r // s.per_node == fault["slow_node"][0]]
    if s.only is not None:
        return None, True, []
    if any(name in fault for name in ("periodic", "gc", "seqlen", "link", "jitter", "stage_layers")):
        return None, "jitter" in fault or "stage_layers" in fault, []
    if not ranks:
        return None, True, []
    named: list[int] | int = ranks if len(ranks) > 1 else ranks[0]
    return named, share >= SURE, []


def _hang(scenario: Scenario) -> dict[str, Any] | None:
    hang = scenario.fault.get("hang")
    if hang is None:
        return None
    return {
        "verdict": HANGS[hang[0]][1],
        "also_ok": [],
        "missing_ranks": [hang[1]] if hang[0] == "missing" else None,
    }
