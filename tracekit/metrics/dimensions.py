"""The dimensions of the job's mesh besides the data-parallel one: what splits the model, and over how many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.metrics.parallelism import BY_NATURE, CONTEXT, EXPERT, PARALLELISMS, PIPELINE, TENSOR
from tracekit.metrics.views import RankView

SHORT = {TENSOR: "TP", CONTEXT: "CP", PIPELINE: "PP", EXPERT: "EP"}
"""In the order in which a mesh names them."""
_WHY = {
    TENSOR: "activations are reduced in the forward pass: tensor parallelism",
    CONTEXT: "sends or all-to-alls beside attention: context parallelism",
    PIPELINE: "sends and receives between passes of several micro-batches: pipeline parallelism",
    EXPERT: "all-to-alls around grouped matrix products: expert parallelism",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of the mesh."""

    kind: str
    """One of `BY_NATURE`."""
    ranks: int | None
    """Ranks of a group, where NCCL tells it."""

    @property
    def evidence(self) -> str:
        """What speaks for it."""
        return f"{_WHY[self.kind]}{f', {self.ranks} ranks a group' if self.ranks else ''}"


def dimensions(views: Sequence[RankView], sizes: Mapping[str, int]) -> tuple[Dimension, ...]:
    """The dimensions that at least half of the ranks' collectives show; ``sizes`` is by communicator."""
    found = []
    for kind in SHORT:
        code = PARALLELISMS.index(kind)
        having = [view for view in views if np.any(view.parallel == code)]
        if 2 * len(having) >= max(len(views), 1) and having:
            found.append(Dimension(kind=kind, ranks=_size(having, code, sizes)))
    return tuple(found)


def _size(views: Sequence[RankView], code: int, sizes: Mapping[str, int]) -> int | None:
    """Ranks of a group, where all of its communicators have equally many."""
    groups = {
        view.collectives.group[int(of)][0]
        for view in views
        for of in np.unique(view.collectives.of[view.parallel == code]).tolist()
    }
    known = {sizes.get(name or "") for name in groups}
    return known.pop() if len(known) == 1 else None


def of_parameters(view: RankView) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(collectives,) mask of those that no other dimension has: of parameters and gradients, as far as can be known."""
    return ~np.isin(view.parallel, [PARALLELISMS.index(name) for name in BY_NATURE])
