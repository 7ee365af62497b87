"""Plans several steps in one process and prints them as JSON; called with a list of command lines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from instrumented_trainer import plan
from instrumented_trainer.config import parse

if __name__ == "__main__":
    plans = [[asdict(c) for c in plan.make(parse(flags))] for flags in json.loads(sys.argv[1])]
    sys.stdout.write(f"PLANS{json.dumps(plans)}\n")
