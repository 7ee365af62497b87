"""tracekit: where every nanosecond of a sharded training step goes, from an Nsight Systems capture.

::

    timeline = tracekit.open("report.sqlite")
    analysis = tracekit.analyze(timeline)
    print(analysis.steady.account.exposed_comm_ns)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit._version import __version__
from tracekit.errors import CaptureError, NoGpuWorkError, TracekitError, UsageError

if TYPE_CHECKING:
    from pandas import DataFrame

    from tracekit.analysis import analyze, examine
    from tracekit.capture import open_captures as open  # noqa: A004 - the house calls it so
    from tracekit.options import Options
    from tracekit.report.frames import frames
    from tracekit.results import Account, Analysis, Finding, Severity
    from tracekit.timeline import Timeline

_LAZY = {
    "open": ("tracekit.capture", "open_captures"),
    "analyze": ("tracekit.analysis", "analyze"),
    "examine": ("tracekit.analysis", "examine"),
    "Options": ("tracekit.options", "Options"),
    "frames": ("tracekit.report.frames", "frames"),
    "Account": ("tracekit.results", "Account"),
    "Analysis": ("tracekit.results", "Analysis"),
    "Finding": ("tracekit.results", "Finding"),
    "Severity": ("tracekit.results", "Severity"),
    "Timeline": ("tracekit.timeline", "Timeline"),
}

__all__ = [
    "Account",
    "Analysis",
    "CaptureError",
    "Finding",
    "NoGpuWorkError",
    "Options",
    "Severity",
    "Timeline",
    "TracekitError",
    "UsageError",
    "__version__",
    "analyze",
    "examine",
    "frames",
    "open",
]


def __getattr__(name: str) -> object:
    # numpy and pyarrow are loaded when they are needed: `tracekit --help` must not wait for them.
    if name in _LAZY:
        from importlib import import_module  # noqa: PLC0415

        module, attribute = _LAZY[name]
        _let_analyses_show_themselves()
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _let_analyses_show_themselves() -> None:
    from tracekit.results import Presenters, present_with  # noqa: PLC0415

    def html(analysis: Analysis) -> str:
        from tracekit.report.notebook import render_notebook  # noqa: PLC0415

        return render_notebook(analysis)

    def tables(analysis: Analysis, detail: Any) -> dict[str, DataFrame]:
        from tracekit.report.frames import frames  # noqa: PLC0415

        return frames(analysis, detail)

    present_with(Presenters(html=html, frames=tables))
