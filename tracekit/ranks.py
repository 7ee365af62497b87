"""Which global rank each (process, device) pair is, and how that was told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tracekit.readers.raw import LARGEST_RANK, RawCapture, RawTrack

RANK_WORD = re.compile(r"(?<![a-z])(?<!local[-_.])(?:rank|proc)[-_.=]?([0-9]+)", re.IGNORECASE)
DOTTED = re.compile(r"\.([0-9]{1,6})(?=\.)")
"""A number between dots; the last one counts: what stands before it may be a date or a job."""
NO_RANKS = re.compile(
    r"(?<![0-9.])[0-9]+(?:\.[0-9]+)+"  # 2025.5.2, cuda12.8, v1.0: a version, unless dots set it off as in job.123456.7
    r"|(?<![0-9])[0-9]+(?:\.[0-9]+){2,}"
    r"|(?<![0-9])(?:19|20)[0-9]{2}[-_.]?[0-1][0-9][-_.]?[0-3][0-9]"
    r"(?:[-_.T ]?[0-2][0-9][-_.:h]?[0-5][0-9](?:[-_.:m]?[0-5][0-9])?)?"
    r"|(?<![0-9])(?:19|20)[0-9]{2}(?![0-9])"
    r"|(?<![0-9])[0-2][0-9][-:h][0-5][0-9][-:m][0-5][0-9](?![0-9])"
)
"""Versions, dates, years and times in file names."""
LARGEST_BARE_RANK = 4096
"""A number from here on that no word calls a rank is rather a process, a job or a time."""
SMALLEST_PID = 64
"""Below this a process's number can be its rank as well: in containers they count from 1."""
NODE_AND_GPU = re.compile(r"(?:node|host)[-_.]?([0-9]+).*?(?:gpu|local_?rank|device|dev)[-_.]?([0-9]+)", re.IGNORECASE)
NUMBER = re.compile(r"[0-9]+")
TRUST = ("trainer_mark", "nccl_comm_init", "environment", "file_name", "order")
"""Where a rank can be told from, most trusted first."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The rank of one track of one capture."""

    capture: int
    track: int
    rank: int
    source: str
    """trainer_mark, nccl_comm_init, environment, file_name or order."""


def assign_ranks(captures: Sequence[RawCapture]) -> tuple[list[Assigned], list[tuple[int, tuple[str, ...]]]]:
    """(one rank for each track, conflicts).

    Each track takes the most trusted claim: the trainer's mark, NCCL's CommInitRank, the environment, the file name.
    The rest are numbered in order of capture, process and device with the numbers that are free. When two tracks claim
    one rank, the more trusted claim keeps it (of equals the first), the others are numbered like the rest, and the
    conflict is returned as (rank, captures that claim it).
    """
    from_files = _ranks_from_files(captures)
    claims: list[tuple[int, int, int | None, str]] = []
    for c, capture in enumerate(captures):
        for t in range(len(capture.tracks)):
            rank, source = _own_claim(capture, t)
            if rank is None and c in from_files:
                rank, source = from_files[c], "file_name"
            claims.append((c, t, rank, source))
    taken: dict[int, list[int]] = {}
    for c, _, rank, _ in claims:
        if rank is not None:
            taken.setdefault(rank, []).append(c)
    free = (n for n in range(len(claims) + len(taken) + 1) if n not in taken)
    holder: dict[int, tuple[int, int]] = {}
    for c, t, rank, _ in sorted(claims, key=lambda claim: TRUST.index(claim[3])):
        if rank is not None:
            holder.setdefault(rank, (c, t))
    assigned = []
    for c, t, rank, source in claims:
        if rank is not None and holder[rank] == (c, t):
            assigned.append(Assigned(c, t, rank, source))
        else:
            assigned.append(Assigned(c, t, next(free), "order"))
    conflicts = {rank: cs for rank, cs in taken.items() if len(cs) > 1} | _copies(captures, assigned)
    named = [(rank, tuple(captures[c].info.path for c in cs)) for rank, cs in sorted(conflicts.items())]
    return sorted(assigned, key=lambda a: a.rank), named


def _copies(captures: Sequence[RawCapture], assigned: Sequence[Assigned]) -> dict[int, list[int]]:
    """Captures by rank where one is there twice: a copy under another name claims nothing, and is the same rank."""
    same: dict[tuple[int, ...], list[Assigned]] = {}
    for a in (each for each in assigned if each.source == "order"):
        same.setdefault(_fingerprint(captures[a.capture].tracks[a.track]), []).append(a)
    return {min(a.rank for a in twins): [a.capture for a in twins] for twins in same.values() if len(twins) > 1}


def _fingerprint(track: RawTrack) -> tuple[int, ...]:
    """What no two ranks share: process, device, and when its work begins and ends, to the ns, and how much it is."""
    ops = track.ops
    return track.pid, track.device, len(ops), int(ops.start[0]), int(ops.end[-1]), int(ops.end.sum() % (1 << 61))


def _own_claim(capture: RawCapture, track: int) -> tuple[int | None, str]:
    own = capture.tracks[track]
    alone = sum(other.process == own.process for other in capture.tracks) == 1
    for claim in capture.claims.get(own.process, ()):
        if claim.device == own.device or (claim.device is None and alone):
            return claim.rank, claim.source
    if capture.environment_rank is not None and len(capture.tracks) == 1:
        return capture.environment_rank, "environment"
    return None, "order"


def _ranks_from_files(captures: Sequence[RawCapture]) -> dict[int, int]:
    """Rank by capture, for captures of one rank each whose names tell it."""
    single = {c: PurePath(capture.info.path).name for c, capture in enumerate(captures) if len(capture.tracks) == 1}
    pids = {c: captures[c].tracks[0].pid for c in single}
    told = {
        c: rank
        for c, name in single.items()
        if (m := RANK_WORD.search(name)) and not _is_pid(rank := int(m[1]), pids[c]) and rank < LARGEST_RANK
    }
    if len(set(told.values())) == len(single):
        return told
    grid = {c: (int(m[1]), int(m[2])) for c, name in single.items() if (m := NODE_AND_GPU.search(name))}
    if len(grid) > 1 and len(grid) == len(single):
        return _ranks_of_grid(grid)
    plain = {c: NO_RANKS.sub("~", name) for c, name in single.items()}
    numbers = {c: [int(n) for n in DOTTED.findall(name)] for c, name in plain.items()}
    dotted = {c: found[-1] for c, found in numbers.items() if found and _can_be_rank(found[-1], pids[c])}
    if len(set(dotted.values())) == len(single):
        return dotted
    return _only_number_that_differs(plain, pids) or told or dotted


def _is_pid(number: int, pid: int) -> bool:
    return number == pid and pid >= SMALLEST_PID


def _can_be_rank(number: int, pid: int) -> bool:
    """Of a number without a word that calls it a rank."""
    return number < LARGEST_BARE_RANK and not _is_pid(number, pid)


def _ranks_of_grid(grid: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Node and GPU numbers to ranks: nodes in order, as many ranks on each as the largest GPU number says."""
    nodes = sorted({node for node, _ in grid.values()})
    gpus = sorted({gpu for _, gpu in grid.values()})
    if len(set(grid.values())) == len(nodes) * len(gpus):
        return {c: nodes.index(node) * len(gpus) + gpus.index(gpu) for c, (node, gpu) in grid.items()}
    first_node, first_gpu = nodes[0], min(gpus[0], 1)
    width = gpus[-1] - first_gpu + 1
    return {c: (node - first_node) * width + gpu - first_gpu for c, (node, gpu) in grid.items()}


def _only_number_that_differs(names: dict[int, str], pids: dict[int, int]) -> dict[int, int]:
    """Rank by capture where the names are equal but for one number that can be a rank; {} where they are not."""
    if len(names) < 2 or len({NUMBER.sub("#", name) for name in names.values()}) != 1:
        return {}
    numbers = {c: [int(n) for n in NUMBER.findall(name)] for c, name in names.items()}
    columns = list(zip(*numbers.values(), strict=True))
    differing = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    if len(differing) != 1:
        return {}
    found = {c: n[differing[0]] for c, n in numbers.items()}
    return found if all(_can_be_rank(n, pids[c]) for c, n in found.items()) else {}
