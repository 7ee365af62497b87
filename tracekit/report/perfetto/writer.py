"""Packets of a Perfetto trace, written one at a time.

A trace is a sequence of length-prefixed `TracePacket` messages, so nothing has to be kept but the strings that were
interned. Packets need not be in order of time (the reader sorts them, those of one instant in the order of the file),
but begins and ends of one track are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent

from tracekit.report.words import clean

SEQUENCE = 1
"""All packets are of one sequence, which owns the interned strings."""
NAME_LIMIT = 1000
"""Characters of a name; what is longer ends in an ellipsis."""
_TABLES = ("event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values")
_PACKET = b"\x0a"
"""Field 1 of `Trace`, length-delimited."""

Arg = tuple[str, int | float | str | bool]
Args = Sequence[Arg]
"""What the reader shows beside an event, by name."""


class Output(Protocol):
    """Where a trace goes: anything that takes bytes."""

    def write(self, content: bytes, /) -> int:
        """Take all of it."""


class Slice(NamedTuple):
    """One bar of a track."""

    start: int
    end: int
    name: str
    category: str
    args: Args = ()
    flows: Sequence[int] = ()
    """Arrows that begin or pass here."""
    ending: Sequence[int] = ()
    """Arrows that end here."""


class TraceWriter:
    """Writes a trace to a binary file. Instants are ns and must not be negative."""

    def __init__(self, file: Output) -> None:
        self._file = file
        self._strings: dict[str, dict[str, int]] = {table: {} for table in _TABLES}
        self._tracks = 0
        first = TracePacket(trusted_packet_sequence_id=SEQUENCE, first_packet_on_sequence=True)
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._write(first)

    def track(
        self,
        name: str,
        *,
        parent: int = 0,
        rank: int = 0,
        description: str | None = None,
        unit: str | None = None,
    ) -> int:
        """Declare a track and return its id; its place among its siblings is by ``rank``.

        Children are shown in the order of their ranks; siblings of one name and rank are shown as one track. With a
        ``unit`` it is a counter.
        """
        self._tracks += 1
        packet = self._packet()
        track = packet.track_descriptor
        track.uuid = self._tracks
        track.name = clean(name, NAME_LIMIT)
        track.sibling_order_rank = rank
        if parent:
            track.parent_uuid = parent
        if description:
            track.description = clean(description, NAME_LIMIT)
        if unit is not None:
            track.counter.unit_name = unit
        else:
            track.child_ordering = TrackDescriptor.EXPLICIT
            track.sibling_merge_behavior = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_TRACK_NAME
        self._write(packet)
        return self._tracks

    def slices(self, track: int, slices: Iterable[Slice]) -> None:
        """Write slices that nest, sorted by start, of one start the longer first."""
        end = self._packet()
        end.track_event.type = TrackEvent.TYPE_SLICE_END
        end.track_event.track_uuid = track
        open_ends: list[int] = []
        for each in slices:
            while open_ends and open_ends[-1] <= each.start:
                end.timestamp = open_ends.pop()
                self._write(end)
            self._write(self._event(track, TrackEvent.TYPE_SLICE_BEGIN, each))
            if each.end > each.start:
                open_ends.append(each.end)
            else:
                end.timestamp = each.start
                self._write(end)
        while open_ends:
            end.timestamp = open_ends.pop()
            self._write(end)

    def instant(self, track: int, at: int, name: str, category: str, args: Args) -> None:
        """Write a mark."""
        self._write(self._event(track, TrackEvent.TYPE_INSTANT, Slice(at, at, name, category, args)))

    def counter(self, track: int, values: Iterable[tuple[int, float]]) -> None:
        """Write a counter's values, each of which holds from its instant until the next one's."""
        packet = self._packet()
        packet.track_event.type = TrackEvent.TYPE_COUNTER
        packet.track_event.track_uuid = track
        for packet.timestamp, packet.track_event.double_counter_value in values:
            self._write(packet)

    def _packet(self) -> TracePacket:
        return TracePacket(trusted_packet_sequence_id=SEQUENCE, sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)

    def _event(self, track: int, kind: TrackEvent.Type, each: Slice) -> TracePacket:
        # A message for each: one that is used again keeps the memory of all lists that it ever held.
        packet = self._packet()
        packet.timestamp = each.start
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        event.name_iid = self._interned("event_names", each.name)
        event.category_iids.append(self._interned("event_categories", each.category))
        for key, value in each.args:
            arg = event.debug_annotations.add()
            arg.name_iid = self._interned("debug_annotation_names", key)
            if isinstance(value, str):
                arg.string_value_iid = self._interned("debug_annotation_string_values", value)
            elif isinstance(value, bool):
                arg.bool_value = value
            elif isinstance(value, int):
                arg.int_value = value
            else:
                arg.double_value = value
        if each.flows:
            event.flow_ids.extend(each.flows)
        if each.ending:
            event.terminating_flow_ids.extend(each.ending)
        return packet

    def _interned(self, table: str, text: str) -> int:
        """The number of a string, which is written once, in a packet before the first that refers to it."""
        known = self._strings[table]
        number = known.get(text)
        if number is None:
            known[text] = number = len(known) + 1
            packet = self._packet()
            entry = getattr(packet.interned_data, table).add()
            entry.iid = number
            if table == "debug_annotation_string_values":
                entry.str = clean(text, NAME_LIMIT).encode("utf-8")
            else:
                entry.name = clean(text, NAME_LIMIT)
            self._write(packet)
        return number

    def _write(self, packet: TracePacket) -> None:
        content = packet.SerializeToString()
        self._file.write(_PACKET + _varint(len(content)) + content)


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    low = bytearray()
    while value >= 128:
        low.append(value & 127 | 128)
        value >>= 7
    low.append(value)
    return bytes(low)
