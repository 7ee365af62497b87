"""``python -m tracekit``, and what the command ``tracekit`` runs."""

import sys


def run() -> None:
    """Run the command line; an interrupt ends it without a traceback from the first line on."""
    try:
        from tracekit.cli import main  # noqa: PLC0415 - an interrupt can come while modules are loaded

        main(prog_name="tracekit")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
