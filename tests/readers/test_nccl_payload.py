"""NCCL's binary payloads, written by hand from the layouts in NCCL's sources."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import NCCL_DOMAIN, PID, Export, nccl_header, small_job

import tracekit
from tracekit.readers.nccl_payload import CommInit, Message, parse_comm_init, parse_message

HASH = 0xF00D_BABE_1234_5678
SCHEMA = {"all_gather": 4, "all_reduce": 5, "broadcast": 6, "reduce_scatter": 7, "reduce": 8, "send_recv": 9}
COMM_INIT = 0


def with_header(body: bytes, number: int) -> bytes:
    return nccl_header(len(body), number) + body


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize(
    ("op", "body", "message"),
    [
        ("all_gather", struct.pack("<QQ", HASH, 4096), Message(communicator=HASH, bytes=4096)),
        ("all_reduce", struct.pack("<QQi", HASH, 4096, 0), Message(communicator=HASH, bytes=4096)),
        ("all_reduce", struct.pack("<QQi4x", HASH, 4096, 0), Message(communicator=HASH, bytes=4096)),  # padded
        ("reduce_scatter", struct.pack("<QQi", HASH, 1, 3), Message(communicator=HASH, bytes=1)),
        ("broadcast", struct.pack("<QQi", HASH, 8, 1), Message(communicator=HASH, bytes=8)),
        ("send_recv", struct.pack("<QQi", HASH, 0, 1), Message(communicator=HASH, bytes=0)),
        # Until NCCL 2.24: no communicator.
        ("all_gather", struct.pack("<Q", 4096), Message(communicator=None, bytes=4096)),
        ("all_reduce", struct.pack("<Qi", 4096, 0), Message(communicator=None, bytes=4096)),
        ("all_reduce", struct.pack("<Qi4x", 4096, 0), Message(communicator=None, bytes=4096)),
        # What cannot be.
        ("all_gather", struct.pack("<QQ", HASH, 1 << 60), None),
        ("all_gather", b"", None),
        ("all_reduce", b"1234567", None),
    ],
)
def test_message(op: str, body: bytes, message: Message | None, header: bool) -> None:
    assert parse_message(op, with_header(body, SCHEMA[op]) if header else body) == message


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ((HASH, 8, 3, 1), CommInit(communicator=HASH, ranks=8, rank=3, device=1)),
        ((HASH, 1, 0, 0), CommInit(communicator=HASH, ranks=1, rank=0, device=0)),
        ((HASH, 8, 8, 1), None),
        ((HASH, 8, -1, 1), None),
        ((HASH, 0, 0, 0), None),
        ((HASH, -8, 0, 0), None),
        ((HASH, 1 << 30, 0, 0), None),
        ((HASH, 8, 3, -1), None),
    ],
)
def test_comm_init(fields: tuple[int, int, int, int], found: CommInit | None, header: bool) -> None:
    body = struct.pack("<Qiii", *fields)
    assert parse_comm_init(with_header(body, COMM_INIT) if header else body) == found


@pytest.mark.parametrize("size", [0, 17, 1 << 40, (1 << 64) - 1])
def test_a_header_that_does_not_fit_its_body_is_not_taken_for_one(size: int) -> None:
    blob = nccl_header(size, 4) + struct.pack("<QQ", HASH, 4096)
    assert parse_message("all_gather", blob) is None
    assert parse_message("all_gather", nccl_header(size, 4)) is None


def test_a_body_may_stand_further_on_than_the_header_ends() -> None:
    body = struct.pack("<QQ", HASH, 4096)
    blob = struct.pack("<QQQQ", NCCL_DOMAIN, (1 << 24) + 4, len(body), 40) + bytes(8) + body
    assert parse_message("all_gather", blob) == Message(communicator=HASH, bytes=4096)


@given(st.binary(max_size=80), st.sampled_from(sorted(SCHEMA)))
def test_no_blob_breaks_the_parser(blob: bytes, op: str) -> None:
    for found in (parse_message(op, blob), parse_message(op, nccl_header(len(blob), 5) + blob)):
        assert found is None or 0 <= found.bytes <= 1 << 50
    for init in (parse_comm_init(blob), parse_comm_init(nccl_header(len(blob), 0) + blob)):
        assert init is None or 0 <= init.rank < init.ranks


def test_payloads_reach_the_timeline_from_a_column_of_text(tmp_path: Path) -> None:
    """binaryData is declared TEXT and holds blobs."""
    export = small_job("2024.6")
    export.domain("NCCL", NCCL_DOMAIN)
    init = export.range("ncclCommInitRank", 10, 20, domain=NCCL_DOMAIN)
    init["binaryData"] = with_header(struct.pack("<Qiii", HASH, 8, 3, 0), COMM_INIT)
    for step in range(3):
        # Around the launch of each step's all-reduce; 256 bytes, and 0 bytes in the middle of a number.
        row = export.range("ncclAllReduce", 10_000 * step + 1_800, 10_000 * step + 2_000, domain=NCCL_DOMAIN)
        row["binaryData"] = with_header(struct.pack("<QQi", HASH, 256, 0), 5)
    timeline = tracekit.open(export.write(tmp_path / "report.sqlite"))
    (rank,) = timeline.ranks
    assert (rank.rank, rank.rank_source) == (3, "nccl_comm_init")
    assert rank.communicators == ((HASH, 8, 3),)
    ranges = timeline.processes[0].ranges
    assert [parse_message("all_reduce", blob) for _, blob in sorted(ranges.payload.items())][1:] == [
        Message(communicator=HASH, bytes=256)
    ] * 3
    assert "nccl_payload" not in timeline.captures[0].lacks
    (collective,) = tracekit.analyze(timeline).collectives
    assert (collective.op, collective.count, collective.bytes) == ("all_reduce", 3, 256)
    assert int(str(collective.communicator), 16) == HASH


def test_an_export_without_blobs_says_so(tmp_path: Path) -> None:
    export = small_job("2024.6")
    export.domain("NCCL", NCCL_DOMAIN)
    export.range("ncclAllReduce", 1_800, 2_000, domain=NCCL_DOMAIN, binaryData=None)
    timeline = tracekit.open(export.write(tmp_path / "report.sqlite"))
    assert "nccl_payload" in timeline.captures[0].lacks
    assert timeline.ranks[0].communicators == ()


def test_nonsense_in_the_column_is_ignored(tmp_path: Path) -> None:
    export = small_job("2024.6")
    export.domain("NCCL", NCCL_DOMAIN)
    for number, blob in enumerate((b"\x00", b"\xff" * 40, "text", 12, b"")):
        export.range("ncclAllReduce", 1_800 + number, 2_000, domain=NCCL_DOMAIN, binaryData=blob)
        export.range("ncclCommInitRank", 10 + number, 50, domain=NCCL_DOMAIN, binaryData=blob)
    timeline = tracekit.open(export.write(tmp_path / "report.sqlite"))
    assert [(rank.rank, rank.pid, rank.rank_source) for rank in timeline.ranks] == [(0, PID, "order")]
    assert [collective.bytes for collective in tracekit.analyze(timeline).collectives] == [None]


def test_of_several_communicators_the_largest_tells_the_rank(tmp_path: Path) -> None:
    export = Export("2026.2")
    export.kernel("gemm", 0, 10)
    export.domain("NCCL", NCCL_DOMAIN)
    for number, (size, rank) in enumerate(((2, 1), (16, 9), (4, 2))):
        row = export.range("ncclCommInitRankConfig", number, 20, domain=NCCL_DOMAIN)
        row["binaryData"] = with_header(struct.pack("<Qiii", HASH + number, size, rank, 0), COMM_INIT)
    (rank_,) = tracekit.open(export.write(tmp_path / "report.sqlite")).ranks
    assert (rank_.rank, rank_.rank_source) == (9, "nccl_comm_init")
