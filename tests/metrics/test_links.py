"""Transfer by group of ranks, waiting set apart; figures by hand."""

import numpy as np
import pytest
from laid_out import US, Job, pairs

from tracekit.config import DEFAULT
from tracekit.metrics.accounting import Covers
from tracekit.metrics.identity import communicator_sizes, rank_collectives
from tracekit.metrics.links import links
from tracekit.metrics.together import put_together

HOSTS = ["a"] * 4 + ["b"] * 4


def links_of(job, hosts=HOSTS, **facts):
    timeline = job.timeline(**facts)
    tracks, sizes = timeline.ranks, communicator_sizes(timeline)
    covers = [Covers.of(track.ops) for track in tracks]
    whole = (-(2**61), 2**61)
    found = [rank_collectives(timeline, t, c, whole, sizes) for t, c in zip(tracks, covers, strict=True)]
    together = put_together(timeline, tracks, found, covers, DEFAULT, align=True)
    return {link.ranks: link for link in links(hosts, tracks, found, together.waits, together.matched)}


def test_by_hand():
    """Pair 2 takes 300 us, the others 100; rank 1 is 50 us late. All-reduces over 2 ranks: busbw = bytes / time."""
    found = links_of(pairs(lambda pair, _: (300 if pair == 2 else 100) * US, late=lambda r, _: 50 * US * (r == 1)))
    assert set(found) == {(0, 4), (1, 5), (2, 6), (3, 7)}
    slow, waiting = found[2, 6], found[1, 5]
    assert (slow.op, slow.hosts, slow.count, slow.bytes, slow.unmatched) == ("all_reduce", ("a", "b"), 39, 1 << 20, 0)
    assert (slow.transfer_ns, slow.transfer_p95_ns, slow.wait_share) == (300 * US, 300 * US, 0)
    assert slow.busbw_gbps == pytest.approx((1 << 20) / 300_000)
    # Rank 5 waits 50 us of each transfer of 100: 25 us a rank in the mean.
    assert (waiting.transfer_ns, waiting.wait_share) == (100 * US, 0.25)
    # Transfers on both ranks: all of it is exposed, and the waits are not in it.
    assert waiting.exposed_transfer_ns == 2 * 39 * 100 * US


def test_the_first_collective_of_a_capture_is_left_out():
    """GIVEN a first transfer of 10 ms, THEN neither median nor p95 sees it."""
    found = links_of(pairs(lambda _, k: 10_000 * US if k == 0 else 100 * US, n=12))
    assert all((link.count, link.transfer_p95_ns) == (11, 100 * US) for link in found.values())


def test_p95():
    """Of 41 collectives after the first every tenth takes 500 us; the 95th percentile, interpolated, is one of them."""
    found = links_of(pairs(lambda _, k: (500 if k % 10 == 5 else 100) * US, n=42))
    own = [500 if k % 10 == 5 else 100 for k in range(1, 42)]
    assert found[0, 4].transfer_p95_ns == round(float(np.percentile(own, 95))) * US == 500 * US


def test_sizes_are_links_of_their_own():
    job = Job(2)
    job.communicator(1, [0, 1])
    for k in range(9):
        start = 1_000 * US * (k + 1)
        job.collective(
            "all_reduce", {0: start, 1: start}, start + (50 + k % 2 * 50) * US, communicator=1, size=1000 + k % 2
        )
    tracks = sorted((link.bytes, link.transfer_ns, link.count) for link in all_links(job))
    assert tracks == [(1000, 50 * US, 4), (1001, 100 * US, 4)]


def all_links(job):
    timeline = job.timeline()
    tracks, sizes = timeline.ranks, communicator_sizes(timeline)
    covers = [Covers.of(track.ops) for track in tracks]
    found = [rank_collectives(timeline, t, c, (0, 2**61), sizes) for t, c in zip(tracks, covers, strict=True)]
    together = put_together(timeline, tracks, found, covers, DEFAULT, align=True)
    return links(["a"] * len(tracks), tracks, found, together.waits, together.matched)


def test_without_sizes_there_is_no_bandwidth():
    job = Job(2)
    for k in range(9):
        start = 1_000 * US * (k + 1)
        job.collective("all_gather", {0: start, 1: start + 9 * US}, start + 50 * US)
    (link,) = all_links(job)
    assert (link.bytes, link.busbw_gbps, link.transfer_ns) == (None, None, 41 * US)


def test_rooted_ops_and_ranks_alone_are_no_links():
    job = Job(2)
    for k in range(9):
        start = 1_000 * US * (k + 1)
        job.collective("broadcast", {0: start, 1: start}, start + 50 * US)
        job.collective("all_reduce", {0: start + 100 * US}, start + 150 * US)
    assert all_links(job) == ()


def test_collectives_without_counterpart_are_counted():
    found = links_of(pairs(lambda *_: 100 * US), drop=lambda rank, row: rank == 4 and row >= 60)
    # Rank 4 has 80 operations, compute and all-reduce in turn: of 40 all-reduces it lost the last 10.
    assert {ranks: link.unmatched for ranks, link in found.items()} == {(0, 4): 10, (1, 5): 0, (2, 6): 0, (3, 7): 0}
