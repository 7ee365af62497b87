"""Communication operations whose NCCL range is lost with their launch row: their stream tells the communicator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Group = tuple[str | None, str]
"""(communicator, op)."""


def joined_by_stream(
    groups: Sequence[Group], of: Int64, stream: Int64, sources: dict[int, str | None]
) -> tuple[tuple[Group, ...], Int64, dict[int, str | None]]:
    """(groups, group of each operation, source of bytes by group) with nameless operations put with their stream's.

    A stream on which one op runs for one communicator wherever that is known runs it for that one everywhere. Of a
    stream that serves several nothing is known.
    """
    found = tuple(groups)
    if not any(communicator is None for communicator, _ in found) or all(c is None for c, _ in found):
        return found, of, sources
    place = {group: i for i, group in enumerate(found)}
    joined = of.copy()
    for nameless, (communicator, op) in enumerate(found):
        if communicator is not None:
            continue
        named = [i for group, i in place.items() if group[1] == op and group[0] is not None]
        for each in np.unique(stream[of == nameless]).tolist():
            here = stream == each
            serves = [i for i in named if np.any(here & (of == i))]
            if len(serves) == 1:
                joined[here & (of == nameless)] = serves[0]
    used = np.unique(joined)
    renumbered = np.zeros(len(found), np.int64)
    renumbered[used] = np.arange(len(used))
    return (
        tuple(found[i] for i in used.tolist()),
        renumbered[joined],
        {int(renumbered[i]): source for i, source in sources.items() if i in used},
    )
