"""Copy an nsys export with only what tells of the job: no host, user, path, environment or other process.

    python sample_traces/scrub.py OUT_FOLDER EXPORT.sqlite...

Needs nothing but Python's standard library. NVTX rows are copied as they are, the strings that they name with them.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

COPIED = ("ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME", "NVTX_EVENTS", "ENUM_NSYS_EVENT_TYPE")
FACTS = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
METADATA = ("EXPORT_META_DATA", "META_DATA_EXPORT")


def scrub(export: Path, folder: Path) -> Path:
    """Write the scrubbed copy into a folder, under the same name; returns its path."""
    to = folder / export.name
    to.unlink(missing_ok=True)
    with sqlite3.connect(f"file:{to}", uri=True) as database:
        database.execute("ATTACH ? AS export", (f"file:{export}?mode=ro",))
        creations = dict(database.execute("SELECT name, sql FROM export.sqlite_master WHERE type = 'table'"))
        for table in COPIED:
            database.execute(creations[table])
            database.execute(f"INSERT INTO main.{table} SELECT * FROM export.{table}")
        for table in [name for name in METADATA if name in creations]:
            database.execute(creations[table])
            marks = ", ".join("?" * len(FACTS))
            database.execute(f"INSERT INTO main.{table} SELECT * FROM export.{table} WHERE name IN ({marks})", FACTS)
        database.execute(creations["StringIds"])
        database.execute(
            "INSERT INTO main.StringIds SELECT * FROM export.StringIds"
            " WHERE id IN (SELECT textId FROM main.NVTX_EVENTS)"
        )
        database.execute(creations["PROCESSES"])
        database.execute(
            "INSERT INTO main.PROCESSES SELECT globalPid, pid, 'python3' FROM export.PROCESSES"
            " WHERE globalPid >> 24 IN (SELECT globalTid >> 24 FROM main.NVTX_EVENTS)"
        )
    database.execute("VACUUM")
    database.close()
    return to


def main() -> None:
    """Scrub the exports named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for export in map(Path, sys.argv[2:]):
        print(scrub(export, folder))


if __name__ == "__main__":
    main()
