"""The JSON that machines read; its keys are documented in docs/reference/json.md and only ever added to."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from tracekit._version import __version__
from tracekit.config import DEFAULT, Thresholds
from tracekit.results import (
    Account,
    Analysis,
    Around,
    Collective,
    CriticalPath,
    Finding,
    Hang,
    HostRank,
    LastActivity,
    Memory,
    Mismatch,
    Prediction,
    Rank,
    Replay,
    Sharding,
    Span,
    Step,
    Straggler,
)
from tracekit.rules.hang_steps import next_steps

SCHEMA_VERSION = 1


def render_json(analysis: Analysis) -> str:
    """The whole analysis as one JSON document, without a final newline."""
    return json.dumps(to_dict(analysis), ensure_ascii=False, allow_nan=False)


def to_dict(analysis: Analysis) -> dict[str, Any]:
    """The document as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tracekit_version": __version__,
        "captures": [
            {
                "path": capture.path,
                "format": capture.format,
                "nsys_version": capture.nsys_version,
                "schema_version": capture.schema_version,
                "ranks": list(capture.ranks),
                "auxiliary": [{"pid": pid, "device": device} for pid, device in capture.auxiliary],
                "diagnostics": list(capture.diagnostics),
                "notes": list(capture.notes),
            }
            for capture in analysis.captures
        ],
        "ranks": [_rank(rank) for rank in analysis.ranks],
        "steady": _steady(analysis),
        "collectives": [_collective(row) for row in analysis.collectives],
        "sharding": _sharding(analysis.sharding) if analysis.sharding else None,
        "efficiency": asdict(analysis.efficiency) if analysis.efficiency else None,
        "memory": _memory(analysis.memory) if analysis.memory else None,
        "stragglers": [_straggler(row) for row in analysis.stragglers],
        "hang": hang_dict(analysis.hang) if analysis.hang else None,
        "not_examined": [] if analysis.sharding else ["sharding", "efficiency", "memory"],
        "findings": [_finding(finding) for finding in analysis.findings],
        "skipped_rules": [
            {"rule": skipped.rule, "reason": skipped.reason, "capture_with": skipped.capture_with}
            for skipped in analysis.skipped_rules
        ],
        "world_size": analysis.world_size,
        "not_captured": list(analysis.not_captured),
        "left_out": [asdict(each) for each in analysis.left_out],
        "host_ranks": [_host_rank(rank) for rank in analysis.host_ranks],
        "replay": _replay(analysis.replay) if analysis.replay else None,
        "critical_path": _critical_path(analysis.critical_path) if analysis.critical_path else None,
        "what_if": [_prediction(row) for row in analysis.replay.what_if] if analysis.replay else [],
        "remedies": [{"unknown": what, "capture_with": how} for what, how in analysis.remedies],
        "thresholds": _changed(analysis.thresholds),
    }


def _changed(thresholds: Thresholds) -> dict[str, float]:
    """Those that are not the default, by name."""
    values = {field.name: getattr(thresholds, field.name) for field in fields(Thresholds)}
    return {name: value for name, value in values.items() if value != getattr(DEFAULT, name)}


def hang_dict(hang: Hang) -> dict[str, Any]:
    """The ``hang`` object alone."""
    return _verdict(hang, hang.last_activity) | {
        "last_activity": [_last_activity(row) for row in hang.last_activity],
        "lacking": list(hang.lacking),
        "notes": list(hang.notes),
        "waits": [asdict(wait) for wait in hang.waits],
        "waits_left_out": hang.waits_left_out,
        "unfinished": [asdict(entry) for entry in hang.unfinished],
        "others": [_verdict(other, hang.last_activity) for other in hang.others],
    }


def _verdict(hang: Hang, activity: tuple[LastActivity, ...]) -> dict[str, Any]:
    """What is told of each of several hangs."""
    return {
        "verdict": hang.verdict,
        "communicator": hang.communicator,
        "description": hang.description,
        "seq": hang.seq,
        "op": hang.op,
        "missing_ranks": list(hang.missing_ranks),
        "waiting_ranks": list(hang.waiting_ranks),
        "ahead_ranks": list(hang.ahead_ranks),
        "behind_ranks": list(hang.behind_ranks),
        "culprits": list(hang.culprits),
        "cycle": [asdict(waiting) for waiting in hang.cycle],
        "mismatches": [_mismatch(row) for row in hang.mismatches],
        "step": hang.step,
        "module": hang.module,
        "around": [_around(table) for table in hang.around],
        "group": asdict(hang.group) if hang.group else None,
        "groups": [asdict(group) for group in hang.groups],
        "launched": [asdict(row) for row in hang.launched],
        "next_steps": list(next_steps(hang, activity)),
    }


def _around(table: Around) -> dict[str, Any]:
    return {
        "communicator": table.communicator,
        "seqs": list(table.seqs),
        "ops": list(table.ops),
        "rows": [
            {"ranks": list(row.ranks), "states": list(row.states), "steps": list(row.steps)} for row in table.rows
        ],
    }


def _mismatch(row: Mismatch) -> dict[str, Any]:
    return {
        "verdict": row.verdict,
        "communicator": row.communicator,
        "seq": row.seq,
        "op": row.op,
        "ranks": list(row.ranks),
        "expected": row.expected,
        "found": [{"ranks": list(ranks), "call": call} for ranks, call in row.found],
    }


def _last_activity(row: LastActivity) -> dict[str, Any]:
    doing = row.activity
    return {
        "rank": row.rank,
        "communicator": row.communicator,
        "seq": row.seq,
        "op": row.op,
        "state": row.state,
        "open_ranges": list(doing.open_ranges),
        "last_call": doing.last_call,
        "last_call_open": doing.last_call_open,
        "last_collective": doing.last_collective,
        "os_call": doing.os_call,
        "frames": list(doing.frames),
        "step": doing.step,
        "module": doing.module,
        "phase": doing.phase,
        "idle_ns": doing.idle_ns,
        "usual_step_ns": doing.usual_step_ns,
        "pending": [asdict(pending) for pending in doing.pending],
        "pending_count": doing.pending_count,
        "process": asdict(row.process),
    }


def _replay(replay: Replay) -> dict[str, Any]:
    return {
        "steps": list(replay.steps),
        "step_time_ns": replay.step_time_ns,
        "unexplained_share": replay.unexplained_share,
        "reason": replay.reason,
        "predictions": [_prediction(row) for row in replay.predictions],
        "together": _prediction(replay.together) if replay.together else None,
        "not_made": list(replay.not_made),
    }


def _critical_path(path: CriticalPath) -> dict[str, Any]:
    return {
        "length_ns": path.length_ns,
        "by_category": path.by_category,
        "by_rank": [{"rank": rank, "ns": ns} for rank, ns in path.by_rank.items()],
        "by_module": [{"module": module, "ns": ns} for module, ns in path.by_module],
    }


def _prediction(row: Prediction) -> dict[str, Any]:
    return {"change": row.change, "step_time_ns": row.step_time_ns, "gain_ns": row.gain_ns}


def _account(account: Account) -> dict[str, Any]:
    return {
        "wall_ns": account.wall_ns,
        "compute_ns": account.compute_ns,
        "exposed_comm_ns": account.exposed_comm_ns,
        "exposed_copy_ns": account.exposed_copy_ns,
        "idle_ns": account.idle_ns,
        "comm_ns": account.comm_ns,
        "overlapped_comm_ns": account.overlapped_comm_ns,
        "overlap_ratio": account.overlap_ratio,
    }


def _rank(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "device": rank.device,
        "device_name": rank.device_name,
        "gpu": rank.gpu,
        "pci_bus": rank.pci_bus,
        "rank_source": rank.rank_source,
        "clock": {
            "offset_ns": rank.clock.offset_ns,
            "drift_ppm": rank.clock.drift_ppm,
            "uncertainty_ns": rank.clock.uncertainty_ns,
            "method": rank.clock.method,
            "origin_ns": rank.clock.origin_ns,
        },
        "totals": _account(rank.totals),
        "start_ns": rank.start_ns,
        "end_ns": rank.end_ns,
        "main_stream": rank.main_stream,
        "kernels": rank.kernels,
        "kernels_launched": rank.kernels_launched,
        "opaque_ns": rank.opaque_ns,
        "step_source": rank.step_source,
        "step_confidence": rank.step_confidence,
        "steps": [_step(step) for step in rank.steps],
        "steps_renumbered": rank.steps_renumbered,
        "wait_caused_ns": rank.wait_caused_ns,
        "caused_share": rank.caused_share,
        "last_arrivals_share": rank.last_arrivals_share,
        "compute_ratio": rank.compute_ratio,
        "modules": [{"module": row.module, **_account(row.account)} for row in rank.modules],
    }


def _host_rank(rank: HostRank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "rank_source": rank.rank_source,
        "pid": rank.pid,
        "step_source": rank.step_source,
        "steps": [
            {
                "step": step.step,
                "start_ns": step.start_ns,
                "end_ns": step.end_ns,
                "open": step.open,
                "by_phase_ns": step.by_phase_ns,
            }
            for step in rank.steps
        ],
        "collectives": [
            {"op": row.op, "count": row.count, "bytes": row.bytes, "issue_ns": row.issue_ns, "open": row.open}
            for row in rank.collectives
        ],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "step": step.step,
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        **_account(step.account),
        "exposed_comm_by_cause": step.exposed_comm_by_cause,
        "exposed_copy_by_cause": step.exposed_copy_by_cause,
        "idle_by_cause": step.idle_by_cause,
        "caused_wait_ns": step.caused_wait_ns,
        "by_phase": {phase: _account(account) for phase, account in step.by_phase.items()},
        "followed": step.followed,
    }


def _steady(analysis: Analysis) -> dict[str, Any] | None:
    steady = analysis.steady
    if steady is None:
        return None
    return {
        "steps": list(steady.steps),
        "left_out": list(steady.left_out),
        "cut_off": list(steady.cut_off),
        "step_time_ns": steady.step_time_ns,
        "step_time_p95_ns": steady.step_time_p95_ns,
        **_account(steady.account),
        "mfu": analysis.efficiency.mfu if analysis.efficiency else None,
        "tokens_per_s": analysis.efficiency.tokens_per_s if analysis.efficiency else None,
    }


def _sharding(found: Sharding) -> dict[str, Any]:
    return {
        "strategy": found.strategy,
        "confidence": found.confidence,
        "evidence": list(found.evidence),
        "bytes_per_step": found.bytes_per_step,
        "expected_bytes_per_step": found.expected_bytes_per_step,
        "shards": found.shards,
        "replicas": found.replicas,
        "parameters": found.parameters,
        "parameters_source": found.parameters_source,
        "explanations": {row.op: row.explanation for row in found.volumes if row.explanation},
    }


def _memory(found: Memory) -> dict[str, Any]:
    need = found.expected
    return {
        "ranks": [asdict(rank) for rank in found.ranks],
        "peak_bytes": found.peak_bytes,
        "spare_bytes": found.spare_bytes,
        "expected": {**asdict(need), "model_state": need.model_state, "total": need.total} if need else None,
        "gap_bytes": found.gap_bytes,
        "kept_bytes": found.kept_bytes,
        "lacking": list(found.lacking),
    }


def _collective(row: Collective) -> dict[str, Any]:
    return {
        "communicator": row.communicator,
        "op": row.op,
        "ranks": list(row.ranks),
        "count": row.count,
        "bytes": row.bytes,
        "bytes_source": row.bytes_source,
        "comm_ns": row.comm_ns,
        "exposed_ns": row.exposed_ns,
        "exposed_per_step_ns": row.exposed_per_step_ns,
        "overlap_ratio": row.overlap_ratio,
        "transfer_ns": row.transfer_ns,
        "peer_wait_ns": row.peer_wait_ns,
        "algbw_gbps": row.algbw_gbps,
        "busbw_gbps": row.busbw_gbps,
        "by_size": [
            {
                "at_least_bytes": each.at_least_bytes,
                "count": each.count,
                "bytes": each.bytes,
                "transfer_ns": each.transfer_ns,
                "algbw_gbps": each.algbw_gbps,
                "busbw_gbps": each.busbw_gbps,
                "peak_gbps": each.peak_gbps,
                "peak_share": each.peak_share,
            }
            for each in row.by_size
        ],
    }


def _straggler(row: Straggler) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "verdict": row.verdict,
        "wait_caused_ns": row.wait_caused_ns,
        "last_arrivals_share": row.last_arrivals_share,
        "cause": row.cause,
        "caused_share": row.caused_share,
        "compute_ratio": row.compute_ratio,
        "kernel_ratio": row.kernel_ratio,
        "slow_kernels_share": row.slow_kernels_share,
        "idle_excess_ns": row.idle_excess_ns,
        "pattern": row.pattern,
        "from_step": row.from_step,
        "period": row.period,
        "hosts": list(row.hosts),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": str(finding.severity),
        "title": finding.title,
        "ranks": list(finding.ranks),
        "steps": list(finding.steps),
        "cost_ns": finding.cost_ns,
        "gain_ns": finding.gain_ns,
        "confidence": str(finding.confidence),
        "confidence_reason": finding.confidence_reason,
        "evidence": [
            {"metric": e.metric, "value": e.value, "unit": e.unit, "threshold": e.threshold} for e in finding.evidence
        ],
        "fix": finding.fix,
        "span": None if finding.span is None else _span(finding.span),
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "rank": span.rank,
        "step": span.step,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "cause": span.cause,
    }
