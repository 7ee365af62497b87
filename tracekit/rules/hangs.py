"""TK301 to TK307: why a job stands still. The diagnosis is made in metrics/hangs; here are its remedies."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.results import Evidence, Finding, Hang, Severity
from tracekit.rules.base import Context
from tracekit.rules.hang_words import claim


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
