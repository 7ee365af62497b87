"""What captures hold and lack, for ``tracekit info``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from tracekit.annotations import Annotation, describe_range
from tracekit.readers.nsys_sqlite import REMEDIES
from tracekit.report.words import clean, duration, plural
from tracekit.timeline import NONE, CaptureInfo, Kind, Process, RankTrack, Source, Timeline

RANGES_SHOWN = 12
STREAMS_SHOWN = 6
KERNELS_SHOWN = 5
CLAIM_WORDS = {
    "trainer_mark": "the trainer's mark",
    "nccl_comm_init": "NCCL's CommInitRank",
    "environment": "the environment",
    "file_name": "the file name",
    "order": "order of capture, process and device",
}


def render_info(timeline: Timeline) -> str:
    """Text for people, one block a capture."""
    lines: list[str] = []
    for index, capture in enumerate(timeline.captures):
        lines += [*([""] if lines else []), *_capture(timeline, index, capture)]
    for path, reason in timeline.left_out:
        lines += ["", clean(path), f"  Left out: {clean(reason)}"]
    for rank, paths in timeline.rank_conflicts:
        lines += ["", f"Rank {rank} is claimed by {plural(len(paths), 'capture')}: {', '.join(map(clean, paths))}"]
    return "\n".join(lines)


def _capture(timeline: Timeline, index: int, info: CaptureInfo) -> Iterator[str]:
    yield clean(info.path)
    version = f"nsys {clean(info.nsys_version)}" if info.nsys_version else "nsys version unknown"
    schema = f", schema {clean(info.schema_version)}" if info.schema_version else ""
    yield f"  {version}{schema} ({info.format})" + (f", host {clean(info.host)}" if info.host else "")
    ranks = [track for track in timeline.ranks if timeline.processes[track.process].capture == index]
    processes = [process for process in timeline.processes if process.capture == index]
    if not ranks:
        yield "  No rank: no kernels ran on a GPU."
    for track in ranks:
        yield from _rank(track)
        yield from _kernels(timeline, track)
    for pid, device in info.auxiliary:
        yield f"  Not a rank: process {pid} on device {device} only copies."
    yield from _ranges(timeline, processes)
    yield f"  CUDA API calls: {sum(len(process.calls) for process in processes):,}"
    for key in info.lacks:
        what, how = REMEDIES[key]
        yield f"  Cannot tell {what}."
        yield f"    To have it: {how}"
    for text in info.notes:
        yield f"  Note: {clean(text)}"
    for text in info.diagnostics:
        yield f"  nsys says: {clean(text)}"


def _rank(track: RankTrack) -> Iterator[str]:
    ops = track.ops
    name = f", {clean(track.device_name)}" if track.device_name else ""
    yield (
        f"  Rank {track.rank}: process {track.pid}, device {track.device}{name}"
        f" (from {CLAIM_WORDS.get(track.rank_source, track.rank_source)})"
    )
    kernels = int(np.count_nonzero(ops.source <= Source.GRAPH))
    comm = int(np.count_nonzero(ops.kind == Kind.COMM))
    launched = int(np.count_nonzero((ops.source <= Source.GRAPH) & (ops.call != NONE)))
    span = int(ops.end.max()) - int(ops.start[0])
    share = f"{100 * launched // max(kernels, 1)} % with their launch"
    streams = plural(len(np.unique(ops.stream)), "stream")
    yield f"    {duration(span)} of GPU work: {kernels:,} kernels ({share}) on {streams}, {comm:,} of communication"
    yield f"    Streams: {_streams(track)}"
    if track.communicators:
        sizes = Counter(size for _, size, _ in track.communicators)
        yield "    Communicators: " + ", ".join(f"{count} of {size} ranks" for size, count in sorted(sizes.items()))


def _kernels(timeline: Timeline, track: RankTrack) -> Iterator[str]:
    """The largest kernels by class, so that a wrong class is seen at once."""
    ops = track.ops
    for kind, word in ((Kind.COMPUTE, "Compute"), (Kind.COMM, "Communication")):
        rows = ops.kind == kind
        time = np.bincount(ops.name[rows], weights=(ops.end - ops.start)[rows], minlength=len(timeline.names))
        whole = float(time.sum())
        names = [index for index in np.argsort(-time, kind="stable")[:KERNELS_SHOWN].tolist() if time[index]]
        if names:
            yield f"    {word}, {duration(whole)} of kernels:"
        for index in names:
            known = timeline.kernel_classes.describe(timeline.names[index])
            facts = [known.op.replace("_", "-")] if known.op else []
            facts += [known.source] if known.source else []
            facts += ["computes as well"] if known.fused else []
            facts += ["named like communication"] if known.suspected else []
            said = f"  ({', '.join(facts)})" if facts else ""
            yield f"      {100 * time[index] / whole:5.1f} %  {clean(known.short)}{said}"


def _streams(track: RankTrack) -> str:
    """What runs on each stream, busiest first."""
    counts: Counter[int] = Counter()
    kinds: dict[int, list[str]] = {}
    for kind, word in ((Kind.COMPUTE, "compute"), (Kind.COMM, "communication"), (Kind.COPY, "copies")):
        streams, amounts = np.unique(track.ops.stream[track.ops.kind == kind], return_counts=True)
        for stream, amount in zip(streams.tolist(), amounts.tolist(), strict=True):
            counts[stream] += amount
            kinds.setdefault(stream, []).append(f"{amount:,} {word}")
    shown = [f"{stream} ({', '.join(kinds[stream])})" for stream, _ in counts.most_common(STREAMS_SHOWN)]
    more = f", and {len(counts) - STREAMS_SHOWN} more" if len(counts) > STREAMS_SHOWN else ""
    return ", ".join(shown) + more


def _ranges(timeline: Timeline, processes: list[Process]) -> Iterator[str]:
    counts: Counter[tuple[int, int]] = Counter()
    for process in processes:
        pairs, amounts = np.unique(np.stack([process.ranges.domain, process.ranges.name]), axis=1, return_counts=True)
        counts.update({(d, n): c for (d, n), c in zip(pairs.T.tolist(), amounts.tolist(), strict=True)})
    total = sum(counts.values())
    yield f"  NVTX ranges: {total:,}" + (f", {plural(len(counts), 'name')}:" if total else "")
    marks_steps = [key for key in counts if (meaning := _meaning(timeline, *key)) is not None and meaning.step]
    shown = dict.fromkeys([*marks_steps[:RANGES_SHOWN], *(key for key, _ in counts.most_common(RANGES_SHOWN))])
    for domain, name in list(shown)[:RANGES_SHOWN]:
        where = timeline.names[domain] if domain != NONE else None
        text = timeline.names[name] if name != NONE else "(unnamed)"
        meaning = _meaning(timeline, domain, name)
        said = ""
        if meaning is not None:
            facts = ["marks steps"] if meaning.step else [meaning.phase, meaning.module]
            told = ", ".join(filter(None, facts))
            said = f"  <- {told}" if told else ""
        yield f"    {counts[domain, name]:>9,}  {clean(f'{where}: {text}' if where else text, 80)}{said}"
    if len(counts) > RANGES_SHOWN:
        yield f"    and {plural(len(counts) - RANGES_SHOWN, 'more name')}"
    if total and not marks_steps:
        yield "    None of them is known to mark a step: name one with tracekit analyze --step-marker NAME."


def _meaning(timeline: Timeline, domain: int, name: int) -> Annotation | None:
    if name == NONE:
        return None
    return describe_range(timeline.names[domain] if domain != NONE else None, timeline.names[name])
