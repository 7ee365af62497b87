"""Causes of exposed copies: what tells each, and what looks like it."""

import numpy as np
import pytest
from handmade import AUTOGRAD, MAIN, Sketch

from tracekit.config import DEFAULT
from tracekit.metrics.activity import Activity
from tracekit.metrics.bubbles import EXPOSED_COPY_CAUSES
from tracekit.metrics.copies import copy_causes
from tracekit.metrics.labels import vocabulary

MB = 1 << 20


def cause(*, ranges=(), **facts):
    """The cause of one copy, launched at 50."""
    job = Sketch()
    rank = job.process()
    for name in ranges:
        rank.range(name, 0, 100)
    rank.range("optimizer" if ranges else "something", 200, 300)
    rank.copy(60, 90, **({"called": 50} | facts))
    timeline = job.timeline()
    process, ops = timeline.processes[0], timeline.ranks[0].ops
    words = vocabulary(timeline, process.ranges)
    activity = Activity.of(process, ops, timeline.names, words, MAIN)
    (found,) = copy_causes(ops, np.array([0]), activity, words, DEFAULT)
    return EXPOSED_COPY_CAUSES[found]


@pytest.mark.parametrize(
    ("ranges", "facts", "expected"),
    [
        (["forward"], {"name": "memcpy HtoD", "bytes": 64 * MB}, "offload"),
        (["backward"], {"name": "memcpy DtoH", "bytes": 64 * MB, "thread": AUTOGRAD}, "offload"),
        (["optimizer"], {"name": "memcpy DtoH", "bytes": 64 * MB, "pageable": True}, "offload"),
        ([], {"name": "memcpy DtoH", "bytes": 64 * MB}, "offload"),
        (["data"], {"name": "memcpy HtoD", "bytes": 64 * MB}, "input"),
        (["data"], {"name": "memcpy HtoD", "bytes": 1000, "pageable": True}, "input"),
        (["step"], {"name": "memcpy HtoD", "bytes": 64 * MB}, "input"),
        ([], {"name": "memcpy HtoD", "bytes": 1000}, "input"),
        (["step"], {"name": "memcpy HtoD", "bytes": 64 * MB, "pageable": True}, "pageable"),
        (["forward"], {"name": "memcpy HtoD", "bytes": 1000, "pageable": True}, "pageable"),
        (["step"], {"name": "memcpy DtoH", "bytes": 64 * MB, "pageable": True}, "pageable"),
        (["step"], {"name": "memcpy DtoH", "bytes": 4, "pageable": True}, "pageable"),
        (["step"], {"name": "memcpy DtoH", "bytes": 64 * MB}, "host_copy"),
        (["forward"], {"name": "memcpy HtoD", "bytes": 1000}, "host_copy"),
        (["forward"], {"name": "memcpy DtoD", "bytes": 64 * MB}, "on_device"),
        (["forward"], {"name": "memset", "bytes": 64}, "on_device"),
        (["forward"], {"name": "memcpy HtoD", "bytes": 64 * MB, "called": None}, "host_copy"),
        (["forward"], {"name": "memcpy DtoH", "bytes": 64 * MB, "called": None}, "host_copy"),
        (["forward"], {"name": "memcpy unified HtoD", "bytes": 64 * MB, "called": None}, "migration"),
        ([], {"name": "memcpy unified DtoH", "bytes": 4096, "called": None}, "migration"),
        (["forward"], {"name": "memcpy", "bytes": 4096, "called": None}, "unknown"),
    ],
)
def test_cause(ranges, facts, expected):
    assert cause(ranges=ranges, **facts) == expected
