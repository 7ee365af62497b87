"""A published trace of operations of a pipeline- and data-parallel job, as a graph for the replay's core.

One row is an operation of one rank (data-parallel rank × stage) in one step. Operations of one type follow each other
on a rank; computing goes on in the order in which it went. Whoever takes part in a transfer is there when it begins,
and it ends for all at once.
"""

import numpy as np
import pandas as pd

from tracekit.metrics.replay.longest_path import Order

COMPUTE = ("forward-compute", "backward-compute", "optimizer")
FIRST = "params-all-gather"
TAIL = (
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
    "optimizer",
)


def transfer_groups(ops):
    """For each operation the number of the transfer that it takes part in; alone where nobody else does."""
    kind, back = ops.optype.astype(str), ops.optype.astype(str).str.startswith("backward")
    link = kind.str.endswith(("-send", "-recv"))
    # A link is named by its earlier stage.
    stage = ops.stage - np.where(link & (kind.str.endswith("recv") ^ back), 1, 0)
    name = kind.where(~link, np.where(back, "backward-link", "forward-link"))
    everyone = kind == "optimizer-clip-main-grad"
    alone = kind.isin([*COMPUTE, "layernorm-grads-all-reduce", "gc"])
    across_stages = kind == "embedding-grads-all-reduce"
    key = pd.DataFrame(
        {
            "step": ops.step,
            "name": name,
            "seq": ops.seq_id,
            "stage": stage.where(~(everyone | across_stages), -1),
            "dp": ops.dp_rank.where(alone | link | across_stages, -1),
        }
    )
    return key.groupby(list(key.columns), sort=False).ngroup().to_numpy()


def step_times(ops):
    """(steps, 2): each step's time replayed as it was, and ideally.

    Ideally computing takes its type's mean over everything and a transfer its type's median.
    """
    ops = ops.sort_values(["step", "dp_rank", "stage", "start_ts"], kind="stable").reset_index(drop=True)
    group = transfer_groups(ops)
    kind = ops.optype.astype(str)
    end = ops.start_ts + ops.duration
    length = end.groupby(group).max() - ops.start_ts.groupby(group).max()
    first = kind.groupby(group).first()
    lone = kind.isin(COMPUTE)
    ideal = length.groupby(first).transform("median")
    for name in COMPUTE:
        ideal[first == name] = ops.duration[kind == name].mean()
    edges = _edges(ops, kind, lone)
    n, groups = len(ops), len(length)
    # An operation's arrival is node i, its transfer (or computing) node n + group; the step's end the last nodes.
    step = pd.factorize(ops.step)[0]
    source = np.concatenate([np.arange(n), n + group[edges[0]], n + group])
    target = np.concatenate([n + group, edges[1], n + groups + step])
    order = Order.of(n + groups + step.max() + 1, source, target)
    took = np.stack([length.to_numpy(), ideal.to_numpy()], axis=1)
    weight = np.concatenate([np.zeros((n, 2)), took[group[edges[0]]], took[group]])
    return order.earliest(weight, np.zeros(order.size))[n + groups :]


def _edges(ops, kind, lone):
    """(before, after) of each dependency between operations of one rank."""
    rank = pd.factorize(pd.MultiIndex.from_frame(ops[["step", "dp_rank", "stage"]]))[0]
    before, after = [], []
    index = np.arange(len(ops))
    # Of one type, and all computing, in turn.
    streams = pd.factorize(kind.where(~lone, "compute"))[0]
    _in_turn(rank * 100 + streams, index, before, after)
    tail = index[kind.isin(TAIL)]
    _in_turn(rank[tail], tail, before, after)
    at = {(r, k, s): i for i, r, k, s in zip(index, rank, kind, ops.seq_id, strict=True)}
    last_compute = {}
    for (r, k, s), i in at.items():
        way, _, what = k.partition("-")
        if what == "compute" and way in ("forward", "backward"):
            for dependency, leads in (((r, f"{way}-recv", s), True), ((r, f"{way}-send", s), False)):
                if dependency in at:
                    pair = (at[dependency], i) if leads else (i, at[dependency])
                    before.append(pair[0])
                    after.append(pair[1])
            before.append(at[r, FIRST, 0])
            after.append(i)
            last_compute[r] = max(last_compute.get(r, 0), i)
    for r, i in last_compute.items():
        before.append(i)
        after.append(tail[rank[tail] == r][0])
    return np.array(before), np.array(after)


def _in_turn(stream, index, before, after):
    order = np.argsort(stream, kind="stable")
    same = stream[order][1:] == stream[order][:-1]
    before.extend(index[order][:-1][same])
    after.extend(index[order][1:][same])
