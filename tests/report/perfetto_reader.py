"""Reads a Perfetto trace with the published message definitions alone, as strictly as the trace processor.

What it refuses: strings that were not interned before, events on tracks that were not declared before, ends without a
begin, slices that cross, instants that run backwards on a track, arrows that run against time.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

INTERNED = {
    "name": "event_names",
    "category": "event_categories",
    "key": "debug_annotation_names",
    "value": "debug_annotation_string_values",
}


@dataclass
class ReadSlice:
    track: tuple[str, ...]
    name: str
    category: str
    args: dict
    start: int
    end: int | None = None
    depth: int = 0
    flows: tuple[int, ...] = ()
    ending: tuple[int, ...] = ()


@dataclass
class ReadTrace:
    tracks: dict[int, TrackDescriptor] = field(default_factory=dict)
    slices: list[ReadSlice] = field(default_factory=list)
    instants: list[ReadSlice] = field(default_factory=list)
    counters: dict[tuple[str, ...], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def path(self, uuid: int) -> tuple[str, ...]:
        """Names from the outermost group to the track."""
        track = self.tracks[uuid]
        return (*(self.path(track.parent_uuid) if track.HasField("parent_uuid") else ()), track.name)

    def on(self, *parts: str) -> list[ReadSlice]:
        """Slices of the tracks whose path holds each part, one level after another."""
        return [s for s in self.slices if len(s.track) > len(parts) and all(map(str.startswith, s.track[1:], parts))]

    def arrows(self) -> dict[int, list[ReadSlice]]:
        """Slices by arrow, in the order in which the trace processor connects them."""
        found = defaultdict(list)
        for each in self.slices:
            for flow in (*each.flows, *each.ending):
                found[flow].append(each)
        return {flow: sorted(own, key=lambda s: s.start) for flow, own in found.items()}


def read_trace(path: Path) -> ReadTrace:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    trace = Trace()
    trace.ParseFromString(content)
    read, strings = ReadTrace(), {kind: {} for kind in INTERNED}
    open_slices: dict[int, list[ReadSlice]] = defaultdict(list)
    last: dict[int, int] = {}
    assert trace.packet[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        for kind, table in INTERNED.items():
            for entry in getattr(packet.interned_data, table):
                assert entry.iid not in strings[kind]
                strings[kind][entry.iid] = entry.str.decode() if kind == "value" else entry.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid
            assert track.uuid not in read.tracks
            assert not track.HasField("parent_uuid") or track.parent_uuid in read.tracks
            read.tracks[track.uuid] = track
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in read.tracks
            assert packet.timestamp >= last.get(event.track_uuid, 0)
            last[event.track_uuid] = packet.timestamp
            _read_event(read, event, packet.timestamp, open_slices[event.track_uuid], strings)
    assert not any(open_slices.values())
    for own in read.arrows().values():
        assert len(own) > 1
        assert own[0].start <= own[1].start
    return read


def _read_event(read: ReadTrace, event: TrackEvent, at: int, stack: list[ReadSlice], strings: dict) -> None:
    is_counter = read.tracks[event.track_uuid].HasField("counter")
    assert is_counter == (event.type == TrackEvent.TYPE_COUNTER)
    if is_counter:
        read.counters[read.path(event.track_uuid)].append((at, event.double_counter_value))
        return
    if event.type == TrackEvent.TYPE_SLICE_END:
        stack.pop().end = at
        return
    args = {}
    for each in event.debug_annotations:
        kind = each.WhichOneof("value")
        value = getattr(each, kind)
        args[strings["key"][each.name_iid]] = strings["value"][value] if kind == "string_value_iid" else value
    found = ReadSlice(
        track=read.path(event.track_uuid),
        name=strings["name"][event.name_iid],
        category=strings["category"][event.category_iids[0]],
        args=args,
        start=at,
        depth=len(stack),
        flows=tuple(event.flow_ids),
        ending=tuple(event.terminating_flow_ids),
    )
    if event.type == TrackEvent.TYPE_INSTANT:
        read.instants.append(found)
        return
    assert event.type == TrackEvent.TYPE_SLICE_BEGIN
    read.slices.append(found)
    stack.append(found)
