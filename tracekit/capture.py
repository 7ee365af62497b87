"""From paths on the command line to a `Timeline`: finds the captures, reads them, numbers the ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from glob import glob
from os import PathLike
from pathlib import Path

from tracekit.config import Thresholds
from tracekit.errors import CaptureError, NoGpuWorkError
from tracekit.jobs import require_one_job
from tracekit.kernel_classes import BY_NAME, KernelClasses
from tracekit.ranks import assign_ranks
from tracekit.readers.database import Progress
from tracekit.readers.many import read_captures
from tracekit.readers.raw import RawCapture
from tracekit.timeline import CaptureInfo, Process, RankTrack, Timeline

SUFFIXES = (".sqlite", ".sqlite3", ".db", ".nsys-rep")
"""What counts as a capture in a folder; a file named outright may have any name."""


def open_captures(
    *paths: str | PathLike[str],
    progressing: Callable[[str], Progress | None] = lambda _: None,
    show_export: bool = False,
    require_ranks: bool = True,
    workers: int | None = None,
    kernels: KernelClasses = BY_NAME,
    strict: bool = True,
    one_job: Thresholds | None = None,
) -> Timeline:
    """Read captures of one job into a timeline.

    ``paths`` are files, folders (all captures directly inside) or glob patterns. ``progressing`` is called with what is
    being read and returns a callback for (rows done, rows expected), or None. Without ``require_ranks`` a timeline
    without ranks is returned rather than an error. ``workers`` is the number of processes that read, 0 for this one
    alone; None starts as many as pay, none for a single capture. The timeline is the same whatever the number.
    ``kernels`` says which kernels are communication or compute, where their names do not. Where not ``strict``, of
    several captures those that cannot be read are left out; `Timeline.left_out` names them, and those without ranks.

    Raises `CaptureError` for what cannot be read, `NoGpuWorkError` when no capture holds a rank and, by the
    thresholds in ``one_job``, `UsageError` for captures that are not of one job.
    """
    raw, names, left_out = read_captures(
        find_captures(paths),
        progressing=progressing,
        show_export=show_export,
        workers=workers,
        classes=kernels,
        strict=strict,
    )
    if require_ranks and not any(capture.tracks for capture in raw):
        raise _no_ranks(raw)
    if one_job is not None and len(raw) > 1:
        require_one_job(raw, len(names), one_job)
    if require_ranks and not strict:
        left_out += tuple((capture.info.path, f"it holds {_held(capture)}") for capture in raw if not capture.tracks)
    return replace(_assemble(raw, names), kernel_classes=kernels, left_out=left_out)


def find_captures(paths: Sequence[str | PathLike[str]]) -> list[Path]:
    """The capture files that paths, folders and glob patterns name, each once, in natural order within a folder.

    Where a folder holds both a report and its export, the export is taken. Raises `CaptureError` when a path does not
    exist or holds no capture.
    """
    found: dict[str, Path] = {}
    for given in map(str, paths):
        path = Path(given)
        if _is_folder(path):
            matches = _in_folder(path)
            if not matches:
                raise CaptureError(
                    f"{path}: no captures in this folder ({', '.join(SUFFIXES)})",
                    hint="Name the files, or the folder that holds them.",
                )
        elif _exists(path) or not any(sign in given for sign in "*?["):
            matches = [path]
        else:
            named = glob(given, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            matches = sorted(map(Path, named), key=_natural)
            matches = [m for match in matches for m in (_in_folder(match) if _is_folder(match) else [match])]
            if not matches:
                raise CaptureError(
                    f"{given}: no file matches", hint="Check the pattern; quote it if the shell should not expand it."
                )
        for match in matches:
            found.setdefault(os.path.realpath(match), match)
    return list(found.values())


# os.path answers False where Path raises: a name that is too long, a folder that may not be entered.
def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def _in_folder(folder: Path) -> list[Path]:
    try:
        files = [f for f in folder.iterdir() if f.suffix in SUFFIXES and f.is_file()]
    except OSError as error:
        raise CaptureError(f"{folder}: {error.strerror}", hint="Ask for read permission on it.") from error
    exports = {f.with_suffix("") for f in files if f.suffix != ".nsys-rep"}
    return sorted((f for f in files if f.suffix != ".nsys-rep" or f.with_suffix("") not in exports), key=_natural)


def _natural(path: Path) -> list[str | int]:
    """Sort key that puts rank10 after rank9."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", str(path)))]


def _assemble(raw: Sequence[RawCapture], names: tuple[str, ...]) -> Timeline:
    captures: list[CaptureInfo] = [capture.info for capture in raw]
    processes: list[Process] = []
    base: list[int] = []
    for capture in raw:
        base.append(len(processes))
        processes += capture.processes
    assigned, conflicts = assign_ranks(raw)
    ranks = []
    for a in assigned:
        capture = raw[a.capture]
        track = capture.tracks[a.track]
        ranks.append(
            RankTrack(
                rank=a.rank,
                rank_source=a.source,
                process=base[a.capture] + track.process,
                pid=track.pid,
                device=track.device,
                device_name=track.device_name,
                host=capture.info.host,
                ops=track.ops,
                device_memory=track.device_memory,
                gpu=track.gpu,
                pci_bus=track.pci_bus,
                overhead_ns=track.overhead_ns,
                communicators=tuple(
                    (communicator, size, rank)
                    for communicator, size, rank, device in capture.communicators.get(track.process, ())
                    if device == track.device or sum(t.process == track.process for t in capture.tracks) == 1
                ),
            )
        )
    return Timeline(
        captures=tuple(captures),
        processes=tuple(processes),
        ranks=tuple(ranks),
        names=names,
        rank_conflicts=tuple(conflicts),
    )


def _no_ranks(raw: Sequence[RawCapture]) -> NoGpuWorkError:
    """Why the captures hold no rank."""
    where = ", ".join(capture.info.path for capture in raw[:3]) + (f" and {len(raw) - 3} more" if len(raw) > 3 else "")
    ranges = sum(len(process.ranges) for capture in raw for process in capture.processes)
    what = _held(*raw)
    said = _about_cuda([text for capture in raw for text in capture.info.diagnostics])
    warning = f" The profiler said: {' '.join(said.split())[:200]}" if said else ""
    if ranges:
        hint = "For what NVTX alone says: --allow-no-gpu. For GPU time capture with nsys profile -t cuda,nvtx."
        return NoGpuWorkError(f"{where}: the capture holds {what}.{warning}", hint=hint)
    hint = "Capture with nsys profile -t cuda,nvtx, on the machine with the GPU, and let the job run past its warm-up."
    return NoGpuWorkError(f"{where}: the capture holds {what}.{warning}", hint=hint)


def _held(*raw: RawCapture) -> str:
    """What captures without ranks hold, in words."""
    calls = sum(len(process.calls) for capture in raw for process in capture.processes)
    ranges = sum(len(process.ranges) for capture in raw for process in capture.processes)
    if any(capture.info.auxiliary for capture in raw):
        return "only copies and memsets, no kernels"
    if calls:
        return f"{calls:,} CUDA API calls and no GPU work"
    return "no GPU work" + (f" ({ranges:,} NVTX ranges)" if ranges else "")


def _about_cuda(said: Sequence[str]) -> str | None:
    """Of the profiler's warnings the one that says most of why there is no GPU work; None without warnings."""
    found = (next((text for text in said if pattern.search(text)), None) for pattern in WHY_NO_GPU_WORK)
    return next((text for text in found if text is not None), next(iter(said), None))


WHY_NO_GPU_WORK = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"driver.*(?:not supported|unsupported|too new|too old|newer|older|insufficient|mismatch)",
        r"(?:CUDA|CUPTI) (?:profiling|trac\w+|injection).*(?:not|fail|unable|error).*(?:start|initiali|load|enable)",
        r"(?:fail|unable|could not|cannot).*(?:CUDA|CUPTI)",
        r"No CUDA events",
        r"\b(?:CUDA|CUPTI|GPU)\b",
    )
)
"""What nsys writes, the most telling first: a driver that it does not know, CUDA profiling that did not start."""
