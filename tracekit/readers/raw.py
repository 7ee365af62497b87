"""What every reader yields: one capture's rows as columns, not yet put in order of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tracekit.timeline import NONE, CaptureInfo, Ops, Process

LARGEST_RANK = 1 << 24
"""From here on a number is no rank but a date, a time or a job."""


class Names:
    """Every distinct name once, shared by all captures of a job; the tables hold indices."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._names: list[str] = []

    def add(self, name: str) -> int:
        """The index of a name, new or known."""
        index = self._index.get(name)
        if index is None:
            index = self._index[name] = len(self._names)
            self._names.append(name)
        return index

    def find(self, name: str) -> int:
        """The index of a name, or NONE."""
        return self._index.get(name, NONE)

    def shorten(self, length: int) -> None:
        """Forget the names from an index on: of a capture that turned out not to be readable."""
        for name in self._names[length:]:
            del self._index[name]
        del self._names[length:]

    def add_all(self, names: Iterable[str]) -> list[int]:
        """The indices of many names."""
        return [self.add(name) for name in names]

    def __getitem__(self, index: int) -> str:
        return self._names[index]

    def __len__(self) -> int:
        return len(self._names)

    def as_tuple(self) -> tuple[str, ...]:
        """All names, by index."""
        return tuple(self._names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawTrack:
    """GPU operations of one (process, device) pair."""

    process: int
    """Index into `RawCapture.processes`."""
    pid: int
    device: int
    device_name: str | None
    ops: Ops
    device_memory: int | None = None
    """Bytes of the GPU's memory."""
    gpu: int | None = None
    """As `tracekit.timeline.RankTrack.gpu`, and so the next two."""
    pci_bus: str | None = None
    overhead_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankClaim:
    """What a capture itself says about which global rank a process is."""

    rank: int
    source: str
    """``trainer_mark``, ``nccl_comm_init`` or ``environment``."""
    device: int | None = None
    """Only for this device of the process; None for any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawCapture:
    """One capture file, read."""

    info: CaptureInfo
    processes: tuple[Process, ...]
    tracks: tuple[RawTrack, ...]
    """Pairs with compute or communication kernels, by (process, device)."""
    claims: dict[int, tuple[RankClaim, ...]] = field(default_factory=dict)
    """By process index, most trusted first."""
    communicators: dict[int, tuple[tuple[int, int, int, int], ...]] = field(default_factory=dict)
    """By process index: (communicator hash, ranks in it, rank in it, device), from NCCL's CommInitRank."""
    environment_rank: int | None = None
    """Global rank that the capture's environment names; only meaningful if the capture holds one rank."""
