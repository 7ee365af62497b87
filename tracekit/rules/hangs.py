"""TK301 to TK307: why a job stands still. The diagnosis is made in metrics/hangs; here are its words and remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tracekit.results import Evidence, Finding, Hang, Mismatch, Severity
from tracekit.rules.base import Context
from tracekit.runs import few_runs


def claim(hang: Hang) -> str:
    """The verdict in one sentence, without its full stop."""
    return CLAIMS[hang.verdict](hang)


def finding_of(hang: Hang) -> Finding | None:
    """The finding of a hang; None for what is none, or is undecided."""
    return next((finding for rule in HANG_RULES for finding in rule.findings(hang)), None)


class HangRule:
    """What the rules about hangs share: each reports some verdicts."""

    code: str
    title: str
    verdicts: tuple[str, ...]
    fix: str

    def check(self, context: Context) -> Iterable[Finding]:
        """The finding of a hang with one of this rule's verdicts."""
        if context.hang is not None:
            yield from self.findings(context.hang)

    def findings(self, hang: Hang) -> Iterable[Finding]:
        """The same without a context: dumps have none."""
        if hang.verdict in self.verdicts:
            yield Finding(
                rule=self.code,
                severity=Severity.ERROR,
                title=claim(hang),
                ranks=hang.culprits or hang.waiting_ranks,
                steps=() if hang.step is None else (hang.step,),
                cost_ns=None,
                gain_ns=None,
                evidence=_evidence(hang),
                fix=self.fix,
            )


class MissingRank(HangRule):
    """TK301: ranks wait in a collective that others never launched."""

    code = "TK301"
    title = "A rank never launched a collective that others wait in"
    verdicts = ("missing_rank", "host_blocked")
    fix = (
        "Look at what the missing ranks did last: a data loader that ended early or waits, a branch that not all ranks "
        "take, an exception that was caught, a save on one rank only. py-spy dump --pid PID shows where such a rank is "
        "now. TORCH_DISTRIBUTED_DEBUG=DETAIL names the rank that calls something else, when it calls."
    )


class TypeMismatch(HangRule):
    """TK302: ranks call different ops as the same collective."""

    code = "TK302"
    title = "Ranks called different ops as one collective"
    verdicts = ("type_mismatch",)
    fix = (
        "Find the branch that differs between ranks: a frozen or unused parameter, a module that only some ranks run, "
        "logging or evaluation on one rank. All that comes after is shifted and says nothing. "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL checks each call as it is made, slowly."
    )


class SizeMismatch(HangRule):
    """TK303: ranks call the same op with sizes that do not belong together."""

    code = "TK303"
    title = "Ranks called a collective with sizes that do not fit"
    verdicts = ("size_mismatch",)
    fix = (
        "Compare how these ranks come to the tensor: uneven shards without padding, batches or sequences of different "
        "length, another model configuration on some ranks, a bucket order that differs. "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL checks shapes as they are called."
    )


class DtypeMismatch(HangRule):
    """TK304: ranks call the same op with different dtypes."""

    code = "TK304"
    title = "Ranks called a collective with different dtypes"
    verdicts = ("dtype_mismatch",)
    fix = (
        "Compare mixed-precision settings and autocast regions of these ranks, and what their checkpoints were saved "
        "in: one of them has a tensor in another dtype."
    )


class OrderInversion(HangRule):
    """TK305: ranks use two communicators in different order and wait for one another."""

    code = "TK305"
    title = "Communicators are used in different order, and ranks wait for one another"
    verdicts = ("order_inversion",)
    fix = (
        "Issue the collectives of these communicators in the same order on all ranks: look for hooks or threads that "
        "race, and for prefetching that differs. Until then run them on one stream, or wait for the one before the "
        "other is issued. CUDA_DEVICE_MAX_CONNECTIONS=1 keeps the order of launch on the GPU; "
        "CUDA_MODULE_LOADING=EAGER excludes kernels that load late; NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26 and later) "
        "lets NCCL order them."
    )


class Unfinished(HangRule):
    """TK306: all ranks are there, and the collective does not end."""

    code = "TK306"
    title = "All ranks launched a collective alike, and it does not finish"
    verdicts = ("unfinished", "state_mismatch")
    fix = (
        "Suspect the network or a GPU: NCCL_DEBUG=WARN (or INFO) and NCCL_DEBUG_SUBSYS=NET, dmesg for Xid errors, "
        "counters of the NICs, nccl-tests between these hosts. Exclude transports one by one with NCCL_P2P_DISABLE=1, "
        "NCCL_SHM_DISABLE=1, NCCL_IB_DISABLE=1. CUDA_MODULE_LOADING=EAGER excludes a kernel that cannot be loaded "
        "while another runs. TORCH_NCCL_ENABLE_TIMING=1 makes dumps tell which kernels have started."
    )


class StepDesync(HangRule):
    """TK307: ranks pair collectives of different steps."""

    code = "TK307"
    title = "Ranks are in different steps and pair collectives that do not belong together"
    verdicts = ("step_desync",)
    fix = (
        "Find what made the rank skip or repeat a step: a loader of another length (drop_last, a sampler without "
        "set_epoch), a batch that was skipped for its loss or for an overflow, a retry after an exception. Let all "
        "ranks decide together, by an all-reduce of the flag, or use torch's Join."
    )


HANG_RULES: tuple[HangRule, ...] = (
    MissingRank(),
    TypeMismatch(),
    SizeMismatch(),
    DtypeMismatch(),
    OrderInversion(),
    Unfinished(),
    StepDesync(),
)


def who(ranks: Sequence[int], *, first: bool = True) -> str:
    """Ranks as ``Rank 3``, ``Ranks 12, 13`` or ``30 ranks (0-11, 14-31)``."""
    if not ranks:
        return "No rank" if first else "no rank"
    text = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {few_runs(ranks)}"
    if len(ranks) > 4:
        text = f"{len(ranks):,} ranks ({few_runs(ranks)})"
    return text[0].upper() + text[1:] if first else text


def collective(hang: Hang) -> str:
    """The collective as ``all-gather 118 of communicator 0xabc (default_pg)``."""
    op = (hang.op or "collective").replace("_", "-")
    name = f" ({hang.description})" if hang.description and hang.description != hang.communicator else ""
    return f"{op} {hang.seq} of communicator {hang.communicator}{name}"


def _evidence(hang: Hang) -> tuple[Evidence, ...]:
    facts = [("communicator", hang.communicator), ("seq", hang.seq), ("op", hang.op)]
    found = [Evidence(metric=name, value=value, unit="") for name, value in facts if value is not None]
    sides = (
        ("ranks that wait", hang.waiting_ranks),
        ("ranks that are missing", hang.missing_ranks),
        ("ranks ahead", hang.ahead_ranks),
        ("ranks behind", hang.behind_ranks),
    )
    found += [Evidence(metric=name, value=len(ranks), unit="ranks") for name, ranks in sides if ranks]
    return tuple(found)


def _missing(hang: Hang) -> str:
    waiting = [rank for rank in hang.waiting_ranks if rank not in hang.missing_ranks]
    verb = "wait" if len(waiting) != 1 else "waits"
    few = who(waiting, first=False) if len(waiting) <= 4 else f"{len(waiting):,} ranks"
    if hang.missing_ranks and set(hang.missing_ranks) <= set(hang.ahead_ranks):  # it may be lost from their dumps
        are, them = ("is", "it") if len(hang.missing_ranks) == 1 else ("are", "them")
        at = f"{are} in later collectives, and no launch of {collective(hang)} is known of {them}"
        return f"{who(hang.missing_ranks)} {at}; {few} {verb}"
    return f"{who(hang.missing_ranks)} never launched {collective(hang)}; {few} {verb}"


def _blocked(hang: Hang) -> str:
    calls = {a.activity.last_call for a in hang.last_activity if a.rank in hang.culprits}
    inside = f"a call of {calls.pop()}" if len(calls) == 1 and None not in calls else "a CUDA call"
    verb = "is" if len(hang.culprits) == 1 else "are"
    return (
        f"The host of {who(hang.culprits, first=False)} {verb} inside {inside} and has not come to {collective(hang)}"
    )


def _mismatch(hang: Hang) -> str:
    at = next(m for m in hang.mismatches if (m.communicator, m.seq) == (hang.communicator, hang.seq))
    if len(at.found) == 1:
        return f"All ranks called {collective(hang)} with sizes that cannot be: {at.found[0][1]}, not {at.expected}"
    return f"Ranks called {collective(hang)} differently: {_sides(at)}"


def _sides(mismatch: Mismatch) -> str:
    sides = [f"{who(ranks, first=False)} {call}" for ranks, call in mismatch.found[:3]]
    return "; ".join(sides) + (f"; and {len(mismatch.found) - 3} more ways" if len(mismatch.found) > 3 else "")


def _state(hang: Hang) -> str:
    late = who(hang.culprits) if hang.culprits else "Some ranks"
    return f"{late} did not get as far as the others in {collective(hang)}, which all launched alike"


def _cycle(hang: Hang) -> str:
    ranks = sorted({waiting.rank for waiting in hang.cycle})
    names = list(dict.fromkeys(waiting.communicator for waiting in hang.cycle))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{who(ranks)} wait for one another: communicators {shown} were used in different order"


def _desync(hang: Hang) -> str:
    odd = who(hang.culprits) if hang.culprits else "Ranks"
    verb = "pairs" if len(hang.culprits) == 1 else "pair"
    return f"{odd} {verb} with other steps' collectives, from {collective(hang)} on"


def _undecided(hang: Hang) -> str:
    at = f" at {collective(hang)}" if hang.communicator else ""
    return f"Undecided{at}; what is lacking: {'; '.join(hang.lacking)}"


CLAIMS: dict[str, Callable[[Hang], str]] = {
    "missing_rank": _missing,
    "host_blocked": _blocked,
    "type_mismatch": _mismatch,
    "size_mismatch": _mismatch,
    "dtype_mismatch": _mismatch,
    "state_mismatch": _state,
    "order_inversion": _cycle,
    "unfinished": lambda hang: f"{who(hang.waiting_ranks)} launched {collective(hang)} alike, and none has finished it",
    "step_desync": _desync,
    "not_a_hang": lambda hang: "No hang: " + (hang.notes[-1] if hang.notes else "all collectives completed"),
    "undecided": _undecided,
}
