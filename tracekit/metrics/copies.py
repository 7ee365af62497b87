"""Why a copy is exposed: what it carries, as far as its size, direction and the ranges around its launch tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.activity import Activity, names_that
from tracekit.metrics.bubbles import EXPOSED_COPY_CAUSES
from tracekit.metrics.labels import Vocabulary
from tracekit.timeline import NONE, Ops

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]

OFFLOAD, INPUT, PAGEABLE, PEER_COPY, MIGRATION, ON_DEVICE, HOST_COPY, UNKNOWN = range(len(EXPOSED_COPY_CAUSES))
TO_DEVICE = frozenset({"memcpy HtoD", "memcpy HtoA", "memcpy unified HtoD"})
BETWEEN_GPUS = frozenset({"memcpy PtoP"})
TO_HOST = frozenset({"memcpy DtoH", "memcpy AtoH", "memcpy unified DtoH"})
MIGRATIONS = frozenset({"memcpy unified HtoD", "memcpy unified DtoH", "memcpy unified DtoD"})
ON_GPU = frozenset({"memcpy DtoD", "memcpy AtoA", "memcpy AtoD", "memcpy DtoA", "memset"})


def copy_causes(ops: Ops, rows: Int64, activity: Activity, words: Vocabulary, thresholds: Thresholds) -> Int8:
    """Index into `EXPOSED_COPY_CAUSES` for each of the copies in ``rows``; of several that hold the first.

    - ``offload``: tensors (by size) to or from the host inside forward, backward or optimizer; where no range tells of
      phases, tensors to the host in pinned memory.
    - ``input``: to the device inside a range that loads data; outside of all phases if not pageable.
    - ``pageable``: anything else with pageable host memory at one end.
    - ``peer_copy``: between two GPUs, outside of every collective.
    - ``migration``: of unified memory, page by page.
    - ``on_device``: within the GPU, memsets included.
    - ``host_copy``: anything else to or from the host.
    """
    to_device, to_host = named(ops, rows, activity.names, TO_DEVICE), named(ops, rows, activity.names, TO_HOST)
    phased = words.where(lambda a: a.phase is not None)
    around = activity.range_of(ops.call[rows].astype(np.int64), phased)
    in_data = (around != NONE) & activity.is_data[np.maximum(around, 0)] if len(activity.is_data) else around != NONE
    at_work, outside = (around != NONE) & ~in_data, (around == NONE) & (ops.call[rows] != NONE)
    tensors, pageable = ops.bytes[rows] >= thresholds.tensor_bytes, ops.pageable[rows]
    told = bool(phased.any())
    offload = tensors & (to_device | to_host) & at_work
    if not told:
        offload |= tensors & to_host & ~pageable
    fed = to_device & (in_data | (outside & ~pageable))
    migrated = named(ops, rows, activity.names, MIGRATIONS)
    cause = np.full(len(rows), UNKNOWN, np.int8)
    between = named(ops, rows, activity.names, BETWEEN_GPUS)
    for code, holds in (
        (HOST_COPY, to_device | to_host),
        (ON_DEVICE, named(ops, rows, activity.names, ON_GPU)),
        (PEER_COPY, between),
        (PAGEABLE, pageable),
        (INPUT, fed & ~migrated),
        (OFFLOAD, offload & ~migrated),
        (MIGRATION, migrated),
    ):
        cause[holds] = code
    return cause


def named(ops: Ops, rows: Int64, names: Sequence[str], wanted: frozenset[str]) -> Bool:
    """(rows,) mask of the operations with one of the names."""
    return names_that(ops.name[rows], names, wanted.__contains__)
