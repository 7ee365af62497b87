"""NCCL's binary NVTX payloads, as nsys exports them since 2024.6 with ``--include-blobs=true``.

Layout by NCCL's sources: little endian. A 32-byte header (domain, schema, size, offset; each u64) stands before the
fields in nsys's export; schema ids of NCCL are 2^24 plus a number. Nothing is believed before it is checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SCHEMA_BASE = 1 << 24
HEADER = struct.Struct("<QQQQ")
COMM_INIT_RANK = struct.Struct("<Qiii")
WORD = struct.Struct("<Q")

LARGEST_MESSAGE = 1 << 50
"""Bytes; anything larger is a misread, not a message."""

WITHOUT_THIRD_FIELD = {"all_gather", "all_to_all"}
"""Ops whose payload has no field after the size (others name a root, a peer or the reduction)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Payload of one collective call: ``bytes`` is one rank's share; the communicator is told from NCCL 2.25 on."""

    communicator: int | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommInit:
    """Payload of ncclCommInitRank."""

    communicator: int
    ranks: int
    rank: int
    device: int


def parse_message(op: str, blob: bytes) -> Message | None:
    """Read the payload of a call of ``op``, of NCCL before or after 2.25; None if it does not hold together."""
    body = _fields(blob)
    # Until 2.24: size [, third field]; from 2.25: communicator, size [, third field]. The length tells which.
    with_communicator = len(body) >= 16 if op in WITHOUT_THIRD_FIELD else len(body) >= 20
    if len(body) < (16 if with_communicator else 8):
        return None
    communicator = WORD.unpack_from(body)[0] if with_communicator else None
    size = WORD.unpack_from(body, 8 if with_communicator else 0)[0]
    return Message(communicator=communicator, bytes=size) if size <= LARGEST_MESSAGE else None


def parse_comm_init(blob: bytes) -> CommInit | None:
    """Read ncclCommInitRank's payload; None if it does not hold together."""
    body = _fields(blob)
    if len(body) < COMM_INIT_RANK.size:
        return None
    communicator, ranks, rank, device = COMM_INIT_RANK.unpack_from(body)
    if not (1 <= ranks <= 1 << 20 and 0 <= rank < ranks and 0 <= device < 1024):
        return None
    return CommInit(communicator=communicator, ranks=ranks, rank=rank, device=device)


def _fields(blob: bytes) -> bytes:
    """The payload without nsys's header, where there is one that holds together."""
    if len(blob) > HEADER.size:
        _, schema, size, offset = HEADER.unpack_from(blob)
        if SCHEMA_BASE <= schema < SCHEMA_BASE + 256 and 0 < size <= len(blob) - HEADER.size and offset <= len(blob):
            start = offset if HEADER.size <= offset <= len(blob) - size else HEADER.size
            return blob[start : start + size]
    return blob
