"""Whether captures are of one job: another world, another model, or another time say that they are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from tracekit.annotations import mark_fields
from tracekit.config import Thresholds
from tracekit.errors import UsageError
from tracekit.readers.raw import RawCapture
from tracekit.timeline import Kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traits:
    """What a capture tells of its job; None or empty is unknown."""

    path: str
    span: tuple[int, int] | None
    """From its first operation to its last, on the wall clock; ns."""
    world: int | None
    model: str | None
    communicators: frozenset[int]
    devices: frozenset[str]
    compute: NDArray[np.float64]
    """Share of compute time by kernel name."""


@dataclass(slots=True)
class Group:
    """Captures that can be of one job."""

    limits: Thresholds
    members: list[Traits] = field(default_factory=list)

    def holds(self, other: Traits) -> bool:
        """Whether a capture can be of the same job: a shared communicator says so, whatever else differs."""
        if any(other.communicators & member.communicators for member in self.members):
            return True
        return all(
            _alike(member, other, self.limits.same_job_kernels_share) for member in self.members[:1]
        ) and self._at_its_time(other)

    def _at_its_time(self, other: Traits) -> bool:
        spans = [member.span for member in self.members if member.span]
        if not spans or other.span is None:
            return True
        apart = max(other.span[0] - max(end for _, end in spans), min(start for start, _ in spans) - other.span[1])
        return apart < self.limits.same_job_ns


def require_one_job(raw: Sequence[RawCapture], names: int, limits: Thresholds) -> None:
    """Raise `UsageError` where the captures are of several jobs; ``names`` is how many names they share."""
    groups: list[Group] = []
    for traits in sorted((_traits(capture, names) for capture in raw if capture.tracks), key=_began):
        found = next((group for group in groups if group.holds(traits)), None)
        if found is None:
            groups.append(found := Group(limits))
        found.members.append(traits)
    if len(groups) > 1:
        raise UsageError(
            f"the captures are of {len(groups)} jobs: {'; '.join(map(_words, groups[:4]))}"
            + (f"; and {len(groups) - 4} more" if len(groups) > 4 else ""),
            hint="Analyze the captures of one job at a time, or all of them as one with --force.",
        )


def _alike(one: Traits, other: Traits, least: float) -> bool:
    """Whether two captures' world, model and kernels agree, as far as both tell."""
    if one.world is not None and other.world is not None and one.world != other.world:
        return False
    if one.model is not None and other.model is not None and one.model != other.model:
        return False
    if one.devices != other.devices or not one.compute.any() or not other.compute.any():
        return True  # other GPUs have other kernels
    return float(np.minimum(one.compute, other.compute).sum()) >= least


def _traits(capture: RawCapture, names: int) -> Traits:
    fields = [mark_fields(text) for process in capture.processes for _, text in process.marks]
    sizes = [each["world_size"] for each in fields if isinstance(each.get("world_size"), int)]
    models = [json.dumps(each["model"], sort_keys=True) for each in fields if each.get("model")]
    compute = np.zeros(names)
    for track in capture.tracks:
        rows = track.ops.kind == Kind.COMPUTE
        compute += np.bincount(track.ops.name[rows], (track.ops.end - track.ops.start)[rows], minlength=names)
    epoch = capture.info.start_epoch_ns
    begun = min(int(track.ops.start[0]) for track in capture.tracks)
    ended = max(int(track.ops.end.max()) for track in capture.tracks)
    return Traits(
        path=capture.info.path,
        span=(epoch + begun, epoch + ended) if epoch is not None else None,
        world=sizes[0] if sizes else None,
        model=models[0] if models else None,
        communicators=frozenset(c for each in capture.communicators.values() for c, _, _, _ in each),
        devices=frozenset(track.device_name for track in capture.tracks if track.device_name),
        compute=compute / compute.sum() if compute.any() else compute,
    )


def _began(traits: Traits) -> tuple[int, int]:
    return (0, traits.span[0]) if traits.span else (1, 0)


def _words(group: Group) -> str:
    names = [PurePath(member.path).name for member in group.members]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    first = group.members[0]
    facts = [f"{first.world} ranks"] if first.world is not None else []
    if first.span and first.span[0] > 0:
        facts.append(f"{datetime.fromtimestamp(first.span[0] / 1e9, UTC):%Y-%m-%d %H:%M} UTC")
    return f"{shown} ({', '.join(facts)})" if facts else shown
