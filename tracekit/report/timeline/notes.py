"""What the timeline leaves out, in words above it."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.report.timeline.kept import Kept
from tracekit.report.timeline.payload import BYTES_AN_EVENT
from tracekit.report.timeline.scene import Scene
from tracekit.report.words import duration, plural, size
from tracekit.runs import runs


def scene_notes(scene: Scene) -> tuple[str, ...]:
    """Return sentences; none where everything is shown as it was measured."""
    return tuple(_notes(scene))


def _notes(scene: Scene) -> Iterator[str]:
    if not scene.aligned:
        what = "step" if scene.step is not None else "first operation"
        yield f"Clocks cannot be aligned: each rank starts at its own {what}."
    if scene.ranks_left_out:
        shown = len(scene.ranks)
        total = shown + scene.ranks_left_out
        yield f"{shown} of {total} ranks: those with a bar above, then in order; --ranks picks others."
    every = size((scene.events + scene.events_as_occupancy) * BYTES_AN_EVENT)
    more = f"--html-detail all keeps every event (about {every})."
    if not scene.kept.whole:
        yield f"{_kept(scene.kept, scene, 'operations')} in full, the rest as occupancy (striped). {more}"
    elif not scene.kept_host.whole:
        host = _kept(scene.kept_host, scene, "CUDA calls and NVTX ranges")
        yield f"All GPU operations; the host's calls and ranges: {host[0].lower()}{host[1:]} in full. {more}"
    coarse = sum(not rank.exact for rank in scene.ranks)
    if coarse:
        yield f"The top lane of {plural(coarse, 'rank')} shows elsewhere the largest part of each slice of time."
    left_out = sum(rank.streams_left_out for rank in scene.ranks)
    if left_out:
        yield f"{plural(left_out, 'stream')} with the least time left out."


def _kept(kept: Kept, scene: Scene, what: str) -> str:
    if kept.steps:
        steps = {number for rank in scene.ranks for number, _, _ in rank.steps}
        return f"{'Step' if len(kept.steps) == 1 else 'Steps'} {runs(kept.steps)} of {len(steps)}"
    if kept.shortest_ns is not None:
        return f"The longest {what} (from {duration(kept.shortest_ns)})"
    return f"No {what}"
