"""Run several strategies one after another and put them in a table, measured beside theory.

::

    python -m instrumented_trainer.compare --strategies ddp zero1 fsdp2 "fsdp2 --compile" -- --steps 10
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from instrumented_trainer import formulas, profile
from instrumented_trainer.config import DEEPSPEED, Config, check_world, parse
from instrumented_trainer.errors import TrainerError
from instrumented_trainer.output import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy's figures; None is unknown."""

    strategy: str
    step_ms: float | None = None
    tokens_per_s: float | None = None
    peak_memory_mb: float | None = None
    wire_mb: float | None = None
    """What a rank sends in a step, from the calls that were made."""
    formula_mb: float | None = None
    """The same from the formula, without padding and scalars."""
    final_loss: float | None = None
    overlap_ratio: float | None = None
    mfu: float | None = None
    note: str | None = None
    """Why the run failed, or why it moves something else than the paper says."""


COLUMNS = (
    ("strategy", "strategy", "{}"),
    ("step ms", "step_ms", "{:.1f}"),
    ("tokens/s", "tokens_per_s", "{:,.0f}"),
    ("peak MB", "peak_memory_mb", "{:,.0f}"),
    ("MB sent a rank and step", "wire_mb", "{:,.3f}"),
    ("by formula", "formula_mb", "{:,.3f}"),
    ("overlap", "overlap_ratio", "{:.2f}"),
    ("MFU", "mfu", "{:.3f}"),
    ("final loss", "final_loss", "{:.4f}"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise TrainerError(message, hint="--help lists the flags; the trainer's own come after --")


def parser() -> argparse.ArgumentParser:
    """The command line, without the trainer's flags after ``--``."""
    p = _Parser(
        prog="instrumented_trainer.compare", allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Compare strategies. Flags after -- go to every run.",
        usage="%(prog)s --strategies NAME... [flags] -- [trainer's flags]",
    )  # fmt: skip
    p.add_argument("--strategies", nargs="+", required=True, metavar="NAME",
                   help='each a strategy with flags of its own if need be: ddp "fsdp2 --compile"')  # fmt: skip
    p.add_argument("--nproc", type=int, default=2, help="ranks on this machine")
    p.add_argument(
        "--timeout", type=float, default=900, metavar="SECONDS", help="for one run; a longer one is interrupted"
    )
    p.add_argument("--nsys", action=argparse.BooleanOptionalAction, default=None,
                   help="capture each run for overlap and MFU; default where there is a GPU and nsys")  # fmt: skip
    p.add_argument("--json", metavar="FILE", help="write the table there too")
    return p


def check(name: str, common: Sequence[str], nproc: int) -> tuple[list[str], Config]:
    """The trainer's flags of one row, checked.

    Raises:
        TrainerError: they cannot work, or DeepSpeed is missing.
    """
    arguments = ["--strategy", *shlex.split(name), *common]
    config = parse(arguments)
    world = 1 if config.strategy == "single" else nproc
    check_world(config, world, device="cuda" if profile.has_gpu(config) else "cpu")
    if config.strategy in DEEPSPEED and find_spec("deepspeed") is None:
        raise TrainerError(f"{config.strategy} needs DeepSpeed", hint='pip install "nsys-tracekit[deepspeed]"')
    return arguments, config


def measure(name: str, arguments: list[str], config: Config, flags: argparse.Namespace, folder: Path) -> Row:
    """Run one strategy and make its row."""
    world = 1 if config.strategy == "single" else flags.nproc
    result_file, log_file = folder / "result.json", folder / "log.txt"
    result_file.unlink(missing_ok=True)
    trainer = [*arguments, "--json", str(result_file)]
    capture = flags.nsys if flags.nsys is not None else profile.has_gpu(config) and shutil.which("nsys") is not None
    work = None
    if capture:
        profile_flags = profile.parser().parse_args(["--nproc", str(world), "--output", str(folder / "capture")])
        profile_flags.warm_up = min(profile_flags.warm_up, config.steps - 1)
        work = profile.plan(profile_flags, trainer, config)
    plain = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command = work.job if work is not None else [*plain, "-m", "instrumented_trainer", *trainer]
    with log_file.open("wb") as log:
        status, reason = profile.run_job(command, patience_s=flags.timeout, log=log)
    if status or reason or not result_file.exists():
        return Row(strategy=name, note=reason or _last_words(log_file, status))
    seen = analysed(work) if work is not None else {}
    return row(name, config, world, json.loads(result_file.read_text()), seen)


def row(name: str, config: Config, world: int, result: dict[str, Any], steady: dict[str, Any]) -> Row:
    """A row from the trainer's result and tracekit's figures of the steady steps."""
    expected = formulas.step_volumes(config, world)
    moved = sum(formulas.wire(c["op"], c["bytes"], c["group_size"]) for c in result["collectives"])
    return Row(
        strategy=name,
        step_ms=result["step_time_ms"],
        tokens_per_s=result["tokens_per_s"],
        peak_memory_mb=result["peak_memory_bytes"] / 1e6,
        wire_mb=moved / 1e6,
        formula_mb=sum(v.wire_bytes for v in expected) / 1e6 if expected is not None else None,
        final_loss=result["losses"][-1],
        overlap_ratio=steady.get("overlap_ratio"),
        mfu=steady.get("mfu"),
        note=formulas.explanation(config),
    )


def analysed(work: profile.Plan) -> dict[str, Any]:
    """tracekit's figures of the steady steps, empty where the capture gave none."""
    databases = [command[command.index("--output") + 1] for command in work.exports]
    for command in work.exports:
        subprocess.run(command, capture_output=True, check=False)
    report = subprocess.run(
        [sys.executable, "-m", "tracekit", "analyze", *databases, "--json", "-"], capture_output=True, check=False
    )
    try:
        return json.loads(report.stdout)["steady"] or {}
    except (ValueError, KeyError):
        return {}


def _last_words(log: Path, status: int) -> str:
    lines = log.read_text(errors="replace").splitlines()
    said = [line.partition(": ")[2] for line in lines if line.startswith("instrumented_trainer: ")]
    errors = [line for line in lines if "Error" in line]
    return said[0] if said else errors[0] if errors else f"exit status {status}"


def markdown(rows: Sequence[Row]) -> str:
    """The table, and below it what needs a word; columns that nothing is known for are left out."""
    known = [c for c in COLUMNS if any(getattr(row, c[1]) is not None for row in rows)]
    lines = ["| " + " | ".join(title for title, _, _ in known) + " |", "|" + " --- |" * len(known)]
    for row in rows:
        values = [(getattr(row, name), form) for _, name, form in known]
        lines.append("| " + " | ".join("–" if value is None else form.format(value) for value, form in values) + " |")
    notes = [f"- {row.strategy}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: 0 done, 1 a run failed, 2 wrong usage."""
    given = list(sys.argv[1:] if argv is None else argv)
    split = given.index("--") if "--" in given else len(given)
    try:
        flags = parser().parse_args(given[:split])
        runs = [(name, *check(name, given[split + 1 :], flags.nproc)) for name in flags.strategies]
        if flags.nsys:
            profile.check_ready(profile.parser().parse_args([]))
        rows = []
        with tempfile.TemporaryDirectory(prefix="compare-") as folder:
            for name, arguments, config in runs:
                print(f"running {name}", file=sys.stderr, flush=True)
                rows.append(measure(name, arguments, config, flags, Path(folder)))
        print(markdown(rows))
        if flags.json is not None:
            write_json(Path(flags.json), [asdict(row) for row in rows])
    except TrainerError as error:
        print(f"instrumented_trainer.compare: {error.line()}", file=sys.stderr)
        return 2
    return 1 if any(row.step_ms is None for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
