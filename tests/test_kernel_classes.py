"""What the user says of kernels; copies between GPUs; kernels that only sound like communication."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from nsys_builder import PTOP, Export

import tracekit
from tracekit.cli import main
from tracekit.errors import UsageError
from tracekit.kernel_classes import KernelClasses, kernel_classes
from tracekit.results import Analysis


def exchange_job() -> Export:
    """One step of 10 us: 4 us of matmul, 3 of an exchange that no rule knows, 2 of NCCL."""
    export = Export()
    export.range("step 0", 0, 11_000)
    export.kernel("ampere_sgemm_128x64(float*)", 1000, 5000, call=(500, 600))
    export.kernel("void my::halo_exchange<float>(float*)", 5000, 8000, call=(700, 800))
    export.kernel("ncclDevKernel_SendRecv(int)", 8000, 10_000, call=(900, 1000), stream=20)
    return export


def analyzed(export: Export, folder: Path, kernels: KernelClasses) -> Analysis:
    return tracekit.analyze(tracekit.open(export.write(folder / "a.sqlite"), kernels=kernels))


def compute_and_ops(analysis: Analysis) -> tuple[int, dict[str, int]]:
    return analysis.ranks[0].totals.compute_ns, {row.op: row.comm_ns for row in analysis.collectives}


@pytest.mark.parametrize(
    ("comm", "compute", "compute_ns", "ops"),
    [
        ([], [], 7000, {"send_recv": 2000}),
        (["halo_exchange"], [], 4000, {"unknown": 3000, "send_recv": 2000}),
        (["my::halo=all-to-all"], [], 4000, {"all_to_all": 3000, "send_recv": 2000}),
        (["halo|sgemm=all_reduce"], [], 0, {"all_reduce": 7000, "send_recv": 2000}),
        ([], ["SendRecv"], 9000, {}),
        (["^ncclDevKernel_SendRecv=all_gather"], ["SendRecv", "nothing"], 7000, {"all_gather": 2000}),
    ],
)
def test_the_user_s_word_goes_before_the_name(
    comm: list[str], compute: list[str], compute_ns: int, ops: dict[str, int], tmp_path: Path
) -> None:
    found = analyzed(exchange_job(), tmp_path, kernel_classes(comm, compute))
    assert compute_and_ops(found) == (compute_ns, ops)


def test_a_kernel_that_the_user_calls_compute_is_it_inside_a_call_of_nccl_too(tmp_path: Path) -> None:
    export = exchange_job()
    export.domain("NCCL", 5)
    export.range("ncclSend", 690, 1010, domain=5)
    path = export.write(tmp_path / "a.sqlite")
    known = [kernel_classes([], []), kernel_classes([], ["halo"])]
    found = [tracekit.analyze(tracekit.open(path, kernels=classes)) for classes in known]
    assert [each.ranks[0].totals.compute_ns for each in found] == [4000, 7000]


@pytest.mark.parametrize(
    ("comm", "compute", "said"),
    [
        (["halo=exchange"], [], "no collective"),
        (["halo("], [], "no regular expression"),
        ([], ["["], "no regular expression"),
        ([""], [], "empty"),
        (["=all_reduce"], [], "empty"),
    ],
)
def test_words_that_mean_nothing_are_refused(comm: list[str], compute: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kernel_classes(comm, compute)


def test_settings_say_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = exchange_job().write(tmp_path / "a.sqlite")
    (tmp_path / "pyproject.toml").write_text('[tool.tracekit]\ncomm-kernels = ["halo=broadcast"]\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(main, ["info", str(path)]).output
    assert "halo_exchange  (broadcast, the user)" in text
    text = CliRunner().invoke(main, ["info", str(path), "--comm-kernel", "halo=reduce"]).output
    assert "halo_exchange  (reduce, the user)" in text


def test_info_lists_the_largest_kernels_by_class(tmp_path: Path) -> None:
    path = exchange_job().write(tmp_path / "a.sqlite")
    lines = CliRunner().invoke(main, ["info", str(path)]).output.splitlines()
    at = next(i for i, line in enumerate(lines) if "Compute, 7.0 µs of kernels" in line)
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["57.1", "%", "ampere_sgemm_128x64"],
        ["42.9", "%", "halo_exchange"],
    ]
    assert "100.0 %  ncclDevKernel_SendRecv  (send-recv, NCCL or RCCL)" in lines[at + 4]


# --- what only sounds like communication ---


def test_suspected_communication_is_noted_with_its_share(tmp_path: Path) -> None:
    export = exchange_job()
    export.kernel("my_all_gather(float*)", 10_000, 11_000, call=(1050, 1060))
    (capture,) = analyzed(export, tmp_path, KernelClasses()).captures
    (note,) = capture.notes
    assert note.startswith("10.0 % of kernel time is named like communication and counts as compute: my_all_gather.")
    (tmp_path / "said").mkdir()
    for classes in (kernel_classes(["my_all"], []), kernel_classes([], ["my_all"])):
        assert analyzed(export, tmp_path / "said", classes).captures[0].notes == ()
        (tmp_path / "said" / "a.sqlite").unlink()


def test_a_kernel_that_also_computes_is_noted(tmp_path: Path) -> None:
    export = exchange_job()
    export.kernel("void flashinfer::allreduce_fusion_kernel_oneshot_lamport<8>(int)", 10_000, 11_000, call=(1050, 1060))
    (capture,) = analyzed(export, tmp_path, KernelClasses()).captures
    assert capture.notes == (
        "10.0 % of kernel time communicates and computes in one kernel, and counts as communication:"
        " allreduce_fusion_kernel_oneshot_lamport",
    )


# --- copies between GPUs ---


def peer_copy_job(around: str | None, domain: str | None = None) -> Export:
    export = Export()
    export.range("step 0", 0, 11_000)
    export.kernel("ampere_sgemm_128x64(float*)", 1000, 5000, call=(500, 600))
    export.memcpy(6000, 9000, call=(700, 800), copyKind=PTOP, stream=20)
    export.kernel("ampere_sgemm_128x64(float*)", 9000, 9500, call=(900, 950))
    if around is not None:
        export.range(around, 650, 850, domain=5 if domain else 0)
    if domain is not None:
        export.domain(domain, 5)
    return export


@pytest.mark.parametrize(
    ("around", "domain", "op"),
    [
        ("nccl:_all_gather_base", None, "all_gather"),
        ("FSDP::all_gather", None, "all_gather"),
        ("ncclAllGather", "NCCL", "all_gather"),
        ("c10d::alltoall_", None, "all_to_all"),
    ],
)
def test_a_copy_between_gpus_inside_a_collective_is_communication(
    around: str, domain: str | None, op: str, tmp_path: Path
) -> None:
    found = analyzed(peer_copy_job(around, domain), tmp_path, KernelClasses())
    assert {row.op: row.comm_ns for row in found.collectives} == {op: 3000}
    assert found.ranks[0].totals.exposed_comm_ns == 3000


@pytest.mark.parametrize("around", [None, "forward", "FSDP::all_gather_copy_in"])
def test_other_copies_between_gpus_stay_copies(around: str | None, tmp_path: Path) -> None:
    found = analyzed(peer_copy_job(around), tmp_path, KernelClasses())
    assert found.collectives == ()
    assert found.ranks[0].totals.exposed_copy_ns == 3000
    assert found.ranks[0].steps[0].exposed_copy_by_cause == {"peer_copy": 3000}


def test_a_copy_within_one_gpu_stays_a_copy(tmp_path: Path) -> None:
    export = peer_copy_job("nccl:_all_gather_base")
    export.memcpy(9500, 9900, call=(700, 800), copyKind=8)
    found = analyzed(export, tmp_path, KernelClasses())
    assert found.ranks[0].totals.exposed_copy_ns == 400
