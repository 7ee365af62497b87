"""`.nsys-rep` reports: exported to SQLite by the installed nsys, once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import platformdirs

from tracekit.errors import CaptureError
from tracekit.readers.database import MAGIC, read_header

INSTALL_HINT = (
    "Install Nsight Systems here, or export where it is: nsys export --type sqlite --include-blobs=true REPORT.nsys-rep"
)
NEWER = re.compile(
    r"(?:created|made|generated) (?:in|with|by) Nsight Systems (?:version )?\(?([0-9][\w.\-]*)\)?[^\n]{0,40}newer"
    r"|newer (?:than|version)",
    re.IGNORECASE,
)
"""How nsys says that a report is newer than it is, from version to version."""


def export_to_sqlite(report: Path, *, show_progress: bool = False) -> tuple[Path, bool]:
    """(the SQLite export of a report, whether it was made now rather than found in the cache).

    The cache is keyed by the report's path, size and time of change. With ``show_progress`` nsys's own progress is
    left to appear on standard error. Raises `CaptureError` when nsys is missing, older than the report, or fails.
    """
    try:
        facts = report.stat()
        with report.open("rb"):
            pass
    except OSError as error:
        raise CaptureError(f"{report}: {error.strerror}", hint="Check the path and its permissions.") from error
    identity = f"{report.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}"
    folder = Path(platformdirs.user_cache_dir("tracekit", appauthor=False)) / "exports"
    # The name is for people who look into the cache, and short enough for any file system.
    stem = re.sub(r"[^\w.-]+", "_", report.stem, flags=re.ASCII)[:80]
    target = folder / f"{stem}-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]}.sqlite"
    if target.exists():
        return target, False
    nsys = shutil.which("nsys")
    if nsys is None:
        raise CaptureError(f"{report}: reading a .nsys-rep needs nsys, which is not on the PATH", hint=INSTALL_HINT)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".export-", dir=folder))
    except OSError as error:
        raise CaptureError(
            f"{report}: cannot write the export to {folder}: {error.strerror}",
            hint="Set XDG_CACHE_HOME to a folder with room.",
        ) from error
    try:
        made = scratch / "export.sqlite"
        _run(nsys, report, made, show_progress=show_progress)
        made.replace(target)
    except OSError as error:
        raise CaptureError(f"{report}: {nsys} cannot export it: {error.strerror}", hint=INSTALL_HINT) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target, True


def _run(nsys: str, report: Path, target: Path, *, show_progress: bool) -> None:
    blobs = ["--include-blobs=true"] if _knows_blobs(nsys) else []
    # Absolute, so that a name that starts with a dash is a file to nsys, not an option.
    command = [nsys, "export", "--type=sqlite", *blobs, f"--output={target}", str(report.absolute())]
    # nsys draws its progress on standard output, which is ours to keep clean.
    run = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2 if show_progress else subprocess.PIPE,
        stderr=subprocess.STDOUT if not show_progress else subprocess.PIPE,
        check=False,
    )
    said = ((run.stdout or b"") + (run.stderr or b"")).decode("utf-8", "replace")
    if newer := NEWER.search(said):
        made_by = f" ({newer[1]})" if newer[1] else ""
        raise CaptureError(
            f"{report}: made by a newer Nsight Systems{made_by} than the one installed here ({_version(nsys)})",
            hint="Update Nsight Systems, or export the report with the version that made it.",
        )
    # Only what can be read goes into the cache.
    if run.returncode != 0 or not target.exists() or not read_header(target).startswith(MAGIC):
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1] if run.returncode and lines else f"exit status {run.returncode} and no SQLite file"
        raise CaptureError(
            f"{report}: nsys export failed: {last[:300]}", hint="Check the report: nsys stats REPORT.nsys-rep"
        )


def _knows_blobs(nsys: str) -> bool:
    return "include-blobs" in _output(nsys, "export", "--help")


def _version(nsys: str) -> str:
    found = re.search(r"\d+\.\d+[\w.\-]*", _output(nsys, "--version"))
    return found.group() if found else "unknown version"


def _output(*command: str) -> str:
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return (run.stdout + run.stderr).decode("utf-8", "replace")
