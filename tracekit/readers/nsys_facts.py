"""Facts about a capture from an nsys export: versions, host, times, GPUs, what the profiler warned of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.readers.database import Database, as_text
from tracekit.readers.nsys_tables import TIME_LIMIT
from tracekit.readers.raw import LARGEST_RANK

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
"""Where launchers put the global rank: torchrun, Open MPI, PMIx, MPICH, MVAPICH, Slurm."""
RANK = re.compile("[0-9]{1,8}")
DIAGNOSTICS_KEPT = 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as far as the capture tells; None is unknown."""

    name: str | None = None
    memory: int | None = None
    """Bytes."""
    number: int | None = None
    """Of the machine, as nvidia-smi counts; CUDA's ordinals depend on what each process may see."""
    pci_bus: str | None = None


class Gpus:
    """GPUs by process and CUDA ordinal, as far as the capture tells."""

    def __init__(self, database: Database) -> None:
        rows = database.small("TARGET_INFO_GPU", "id", "cuDevice", "name", "totalMemory", "busLocation")
        # The table can list adapters that no kernel runs on.
        known = [
            (gpu, ordinal, name, _bytes(size), as_text(bus) or None)
            for gpu, ordinal, text, size, bus in rows
            if (name := as_text(text)) and not any(other in name for other in ("Intel", "Microsoft"))
        ]
        self._by_id = {gpu: (name, size) for gpu, _, name, size, _ in known}
        self._by_ordinal = {ordinal: (name, size) for _, ordinal, name, size, _ in known if ordinal is not None}
        self._bus = {gpu: bus for gpu, _, _, _, bus in known}
        self._physical = {
            (pid, ordinal): gpu
            for gpu, ordinal, pid in database.small("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        }
        distinct = set(self._by_id.values())
        self._only = distinct.pop() if len(distinct) == 1 else None
        self._single = known[0][0] if len(known) == 1 else None

    def of(self, pid: int, device: int) -> Gpu:
        """The GPU that the process calls ``device``."""
        if (pid, device) in self._physical:
            gpu = self._physical[pid, device]
            name, memory = self._by_id.get(gpu, (None, None))
            return Gpu(name, memory, gpu if isinstance(gpu, int) else None, self._bus.get(gpu))
        name, memory = self._only or self._by_ordinal.get(device) or self._by_id.get(device) or (None, None)
        if self._single is not None:
            return Gpu(name, memory, None, self._bus.get(self._single))
        return Gpu(name, memory)


def _bytes(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def environment_rank(database: Database) -> int | None:
    """The global rank in the environment of the profiled command, or of the profiler."""
    variables: dict[str, str] = {}
    for name, value in _facts(database, "TARGET_INFO_SYSTEM_ENV"):
        if name == "DeviceEnvironment":
            # nsys 2022.4 separates them by NUL, 2026.2 by semicolons.
            pairs = value.split("\0" if "\0" in value else ";")
            variables |= dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    for name, value in _facts(database, "META_DATA_CAPTURE"):
        if name.endswith("ENVIRONMENT_VARIABLE"):
            key, _, text = value.partition("=")
            variables[key] = text.strip('"')
    for variable in RANK_VARIABLES:
        if RANK.fullmatch(text := variables.get(variable, "")) and int(text) < LARGEST_RANK:
            return int(text)
    return None


def _facts(database: Database, table: str) -> list[tuple[str, str]]:
    """(name, value) rows of a table of facts; those without either are left out."""
    rows = ((as_text(name), as_text(value)) for name, value in database.small(table, "name", "value"))
    return [(name, value) for name, value in rows if name and value]


def versions(database: Database) -> dict[str, str | None]:
    """Versions of the profiler and of the export's schema, as `CaptureInfo` names them."""
    facts = dict(_facts(database, "EXPORT_META_DATA") + _facts(database, "META_DATA_EXPORT"))
    return {
        "nsys_version": facts.get("EXPORT_PRODUCT_VERSION"),
        "schema_version": facts.get("EXPORT_SCHEMA_VERSION"),
    }


def host(database: Database) -> str | None:
    """Name of the machine."""
    return dict(_facts(database, "TARGET_INFO_SYSTEM_ENV")).get("Hostname")


def stop_time(database: Database) -> int | None:
    """When the capture ended, on its own clock."""
    return _first_time(database.small("ANALYSIS_DETAILS", "stopTime"))


def epoch_of_zero(database: Database) -> int | None:
    """Wall-clock time of the capture's time zero; nsys writes that of its start."""
    epoch = _first_time(database.small("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"))
    start = _first_time(database.small("ANALYSIS_DETAILS", "startTime"))
    return epoch - (start or 0) if epoch is not None else None


def _first_time(rows: Sequence[tuple[object, ...]]) -> int | None:
    return next((row[0] for row in rows if isinstance(row[0], int) and abs(row[0]) <= TIME_LIMIT), None)


def diagnostics(database: Database) -> tuple[str, ...]:
    """The profiler's warnings and errors, errors first, each once."""
    rows = [row for row in database.small("DIAGNOSTIC_EVENT", "severity", "text") if row[0] in (2, 3) and row[1]]
    return tuple(dict.fromkeys(str(as_text(text)) for _, text in sorted(rows, key=lambda row: -row[0])))[
        :DIAGNOSTICS_KEPT
    ]
