"""Diagnose a hang from the dumps of many ranks: time and peak memory of ``tracekit hang``.

::

    python benchmarks/hang.py --ranks 1024 --entries 2000

Each rank's dump is what torch writes: pickle protocol 2, with stacks, a ring buffer that has wrapped, and groups of 8
(tensor parallel), 128 (data parallel) and all ranks. One rank stops early in its group of 8.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLS = (("tp", "_all_gather_base", 8), ("dp", "_reduce_scatter_base", None), ("0", "all_reduce", 1))
FRAMES = [{"name": f"function_{i}", "filename": f"/app/model/part_{i}.py", "line": 10 * i} for i in range(12)]


def write_dump(folder: Path, rank: int, ranks: int, entries: int, *, stopped: bool) -> None:
    """The dump of one rank, whose last collective waits."""
    tensor, data = rank // 8, rank % 8
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))},
        f"tp{tensor}": {
            "name": f"tp{tensor}",
            "desc": "mesh_tp",
            "ranks": str(list(range(8 * tensor, 8 * tensor + 8))),
        },
        f"dp{data}": {"name": f"dp{data}", "desc": "mesh_dp", "ranks": str(list(range(data, ranks, 8)))},
    }
    names = {"tp": (f"tp{tensor}", "mesh_tp"), "dp": (f"dp{data}", "mesh_dp"), "0": ("0", "default_pg")}
    lost, made = 30_000, []
    for i in range(lost, lost + entries - stopped):
        group, op, grows = CALLS[i % 3]
        size = 1 << 16
        other = size if grows == 1 else size * 8 if grows else size // (ranks // 8)
        last = i == lost + entries - 1
        made.append(
            {
                "record_id": i,
                "pg_id": i % 3,
                "process_group": names[group],
                "collective_seq_id": i // 3 + 1,
                "p2p_seq_id": 0,
                "op_id": i,
                "profiling_name": f"nccl:{op}",
                "time_created_ns": 1_700_000_000_000_000_000 + i * 1_000_000,
                "input_sizes": [[size]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[other]],
                "output_dtypes": ["BFloat16"],
                "state": "scheduled" if last else "completed",
                "time_discovered_started_ns": None if last else 1_700_000_000_000_000_000 + i * 1_000_000,
                "time_discovered_completed_ns": None if last else 1_700_000_000_000_000_500 + i * 1_000_000,
                "retired": not last,
                "timeout_ms": 600_000,
                "is_p2p": False,
                "frames": list(FRAMES),
            }
        )
    content = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": made}
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(arguments.ranks):
            write_dump(folder, rank, arguments.ranks, arguments.entries, stopped=rank == 13)
        size = sum(path.stat().st_size for path in folder.iterdir())
        command = [sys.executable, "-m", "tracekit", "hang", name, "--json", "-"]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        hang = json.loads(done.stdout)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{arguments.ranks} ranks x {arguments.entries} entries, {size / 1e6:.0f} MB of dumps")
    peak, cpu = used.ru_maxrss / 1e6, used.ru_utime + used.ru_stime
    print(f"{seconds:.1f} s, {cpu:.1f} s of CPU in all processes, largest process {peak:.2f} GB")
    print(f"{hang['verdict']}, {hang['communicator']} {hang['seq']}, culprits {hang['culprits']}")


if __name__ == "__main__":
    main()
