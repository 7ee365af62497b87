"""One capture file of whatever kind: an SQLite export, or a report that nsys exports first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracekit.errors import CaptureError
from tracekit.kernel_classes import BY_NAME, KernelClasses
from tracekit.readers.database import MAGIC, Progress, open_database, read_header
from tracekit.readers.nsys_rep import export_to_sqlite
from tracekit.readers.nsys_sqlite import read_nsys_sqlite
from tracekit.readers.raw import Names, RawCapture


def read_capture(
    path: Path,
    names: Names,
    index: int,
    progressing: Callable[[str], Progress | None],
    show_export: bool,
    classes: KernelClasses = BY_NAME,
) -> RawCapture:
    """Read one capture, the ``index``-th of its job; ``names`` is added to.

    Raises `CaptureError` for what cannot be read.
    """
    header = read_header(path)
    is_report = path.suffix == ".nsys-rep" and not header.startswith(MAGIC)
    if path.suffix in (".qdrep", ".qdstrm") and not header.startswith(MAGIC):
        kind = (
            "a report of Nsight Systems before 2021.4"
            if path.suffix == ".qdrep"
            else "raw data that nsys never imported"
        )
        raise CaptureError(
            f"{path}: {kind}",
            hint="Export it with the nsys that made it: nsys export --type sqlite FILE, then analyze the .sqlite.",
        )
    if is_report and not header:
        raise CaptureError(
            f"{path}: an empty file",
            hint="Capture again; nsys writes the report when it is interrupted, not when it is killed.",
        )

    def read(export: Path, file_format: str) -> RawCapture:
        with open_database(export) as database:
            return read_nsys_sqlite(
                database,
                names,
                capture=index,
                path=str(path),
                file_format=file_format,
                progressing=progressing,
                classes=classes,
            )

    if not is_report:
        return read(path, "nsys-sqlite")
    export, is_new = export_to_sqlite(path, show_progress=show_export)
    try:
        return read(export, "nsys-rep")
    except CaptureError:
        if is_new:
            raise
        # An export in the cache can have been damaged since it was made.
        export.unlink(missing_ok=True)
        export, _ = export_to_sqlite(path, show_progress=show_export)
        return read(export, "nsys-rep")
