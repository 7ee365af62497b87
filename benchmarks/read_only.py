"""Read the columns that tracekit reads, and do nothing with them: the yardstick for `speed.py`.

python benchmarks/read_only.py CAPTURE.sqlite
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote

from adbc_driver_sqlite import dbapi

COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "globalPid",
        "demangledName",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
}
"""What tracekit reads of the two tables that hold nearly all rows."""


def read(path: Path) -> dict[str, int]:
    """Rows by table; all columns are in memory, as Arrow, when a table is counted."""
    rows = {}
    with dbapi.connect(f"file:{quote(str(path.absolute()))}?mode=ro") as connection, connection.cursor() as cursor:
        for table, columns in COLUMNS.items():
            listed = ", ".join(f'"{column}"' for column in columns)
            cursor.execute(f"SELECT {listed} FROM {table}")
            rows[table] = cursor.fetch_arrow_table().num_rows
    return rows


if __name__ == "__main__":
    print(read(Path(sys.argv[1])))
