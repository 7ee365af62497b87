"""Evidence of jobs that stand still, written down rank by rank.

::

    job = Job({"world": (0, 1)})
    job.rank(0).did("world", 1, "all_reduce", 4, 4).waits("world", 2, "all_gather", 4, 8)
    evidence = job.evidence()
"""

from __future__ import annotations

import numpy as np

from tracekit.evidence import UNKNOWN, Activity, Communicator, Entries, Evidence, RankEvidence, State


class Job:
    def __init__(self, communicators, *, world_size=None, interrupted=None, descriptions=None):
        self.communicators = communicators
        self.order = list(communicators)
        self.descriptions = descriptions or {}
        self.world_size, self.interrupted = world_size, interrupted
        self.names = []
        self.ranks = {}

    def rank(self, number, **facts):
        return self.ranks.setdefault(number, Rank(self, number, facts))

    def name(self, text):
        if text is None:
            return UNKNOWN
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)

    def evidence(self):
        return Evidence(
            ranks=tuple(self.ranks[number].build() for number in sorted(self.ranks)),
            communicators=tuple(
                Communicator(name=name, description=self.descriptions.get(name), ranks=self.communicators[name])
                for name in self.order
            ),
            names=tuple(self.names),
            world_size=self.world_size,
            interrupted=self.interrupted,
            notes=(),
        )


class Rank:
    def __init__(self, job, number, facts):
        self.job, self.number, self.facts, self.rows = job, number, facts, []

    def entry(self, communicator, seq, op, size_in=None, size_out=None, *, state, dtype=None, step=None):
        known = [UNKNOWN if value is None else value for value in (size_in, size_out, step)]
        index = self.job.order.index(communicator)
        self.rows.append((index, seq, self.job.name(op), known[0], known[1], self.job.name(dtype), state, known[2]))
        return self

    def did(self, *what, **more):
        return self.entry(*what, state=State.COMPLETED, **more)

    def waits(self, *what, **more):
        return self.entry(*what, state=State.STARTED, **more)

    def issued(self, *what, **more):
        return self.entry(*what, state=State.ISSUED, **more)

    def unknown(self, *what, **more):
        return self.entry(*what, state=State.UNKNOWN, **more)

    def build(self):
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * 8
        names = ("communicator", "seq", "op", "elements_in", "elements_out", "dtype", "state", "step")
        types = (np.int32, np.int64, np.int32, np.int64, np.int64, np.int32, np.int8, np.int64)
        facts = dict(self.facts)
        return RankEvidence(
            rank=self.number,
            rank_source="order",
            source=f"rank{self.number}",
            entries=Entries(**{n: np.array(c, t) for n, c, t in zip(names, columns, types, strict=True)}),
            wrapped=facts.pop("wrapped", False),
            end_ns=facts.pop("end_ns", None),
            activity=Activity(**facts),
        )
