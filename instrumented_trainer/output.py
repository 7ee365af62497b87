"""Output files that nobody reads half of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from instrumented_trainer.errors import TrainerError


def write_json(path: Path, result: Any) -> None:
    """Write JSON beside the file, then rename.

    Raises:
        TrainerError: the file cannot be written.
    """
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(json.dumps(result, indent=1) + "\n")
        beside.replace(path)
    except OSError as error:
        raise TrainerError(f"cannot write {path}: {error.strerror}") from None
