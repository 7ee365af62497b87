"""Every heuristic threshold, in one place, each with where it comes from.

A threshold marked † has no published source: it is ours, chosen on the traces that we have, and meant to be changed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds of the analysis. Shares are 0 to 1, times are ns."""

    warm_up_ratio: float = 1.5
    """† A leading step longer than this × the median is warm-up and left out of the steady figures."""
    cut_off_share: float = 0.05
    """† A step that no other follows and that is this much shorter than the median step was cut off by the capture's
    end: it is shown and left out of the steady figures."""
    period_repeats: int = 3
    """† What repeats less often is no step."""
    period_coverage: float = 0.6
    """† Of the main stream's kernels, this share repeats exactly where a period is taken for a step."""
    period_kernels: int = 5
    """† Fewer different kernels than this are a benchmark's loop, not a training step."""
    period_time_share: float = 0.9
    """† Where not all kernels repeat exactly, those are compared that take most of the time, up to this share."""
    period_spread: float = 0.1
    """† Ranks of one job whose periods differ in length by more than this share do not repeat their steps."""
    error_share: float = 0.10
    """† A finding whose fix saves this share of the step is an error."""
    warning_share: float = 0.02
    """† A finding whose fix saves this share of the step is a warning; exposed time from here on is always reported."""
    wait_share: float = 0.02
    """† Exposed waiting below this share of the step blames nobody: natural spread alone gives 1.5-1.8 % raw."""
    persistent_share: float = 0.5
    """† From this share of all waiting on, caused by one rank, it is that rank (P)."""
    rotating_share: float = 0.4
    """† Below this share for the worst rank, ranks take turns; in between it is undecided."""
    turn_share: float = 0.1
    """† A rank that causes this share of the waiting takes part in the turns."""
    late_steps_share: float = 0.8
    """† A rank that is late in this share of the steps, or of those from one on, is late in all of these."""
    own_wait_ratio: float = 0.25
    """† Who makes others wait waits itself at most this × the median."""
    slow_compute_ratio: float = 1.05
    """† Compute, or the same kernel, this × the peers' is slow (W)."""
    every_kernel_share: float = 0.9
    """† From this share of kernel time being slow on, it is the device and not a kernel."""
    explained_share: float = 0.5
    """† A reason has to account for this share of the lateness."""
    launch_lag_ns: int = 20_000
    """† A collective that starts this soon after its launch call was waiting for nothing but the launch."""
    launch_latency_ns: int = 5_000
    """† A shorter idle gap is what starting a kernel takes; timestamps and clocks leave doubts of this size anyway."""
    refill_ns: int = 1_000_000
    """† For so long after a call that blocked until the GPU ran dry, the call is why the host has nothing queued."""
    quiet_ns: int = 100_000
    """† Without a CUDA call for so long, the launching thread is busy with something else than launching."""
    tensor_bytes: int = 1 << 20
    """† A copy of this size or more carries tensors, not a loss or a flag."""
    no_overlap_share: float = 0.05
    """† Collectives with less of their time beside compute are said never to overlap it."""
    unexplained_share: float = 0.05
    """† From this share of the exposed communication on that has no known cause, the finding says so."""
    residue_share: float = 0.05
    """† Idle time and copies that no rule explains are a finding from this share of the step on,"""
    residue_of_lost: float = 0.2
    """† or from this share of all exposed and idle time, where that is ``residue_share`` of the step or more."""
    reported_share: float = 0.01
    """† Lost time of one host-side cause below this share of the step is not worth a finding."""
    late_gaps_share: float = 0.5
    """† From this share of idle gaps ending with a late launch on, a job is launch-bound."""
    late_gaps: int = 5
    """† Fewer late launches a step are single events, not a host that cannot keep up."""
    pause_ns: int = 1_000_000
    """† A host that launches nothing for so long does not run behind: it pauses."""
    pauses_share: float = 0.5
    """† What pauses a rank in more than this share of its steps is regular work, not a garbage collector."""
    one_off_ratio: float = 3.0
    """† A pause this × as long as the longest one of the median step is an event of its step, not regular work."""
    repeated_pauses: int = 3
    """† So many pauses between the same two operations are the program's own work, where no range marks steps."""
    fewest_frees: int = 3
    """† Fewer calls that give GPU memory back are no allocator that runs out of it."""
    data_gap_ns: int = 200_000
    """† A GPU that waits for its batch less than this (median over the waits) is fed well enough."""
    single_value_bytes: int = 64
    """† A copy to the host of so few bytes reads a value: .item(), a comparison, print."""
    usable_memory_share: float = 0.92
    """† Of a GPU's memory; the rest is CUDA's context, NCCL's buffers and fragmentation."""
    memory_gap_share: float = 0.25
    """† Reserved memory this share above what is expected is worth a word."""
    memory_gap_of_gpu: float = 0.05
    """† And only from this share of the GPU's memory on."""
    churn_calls: int = 10
    """† So many allocations and frees a step are churn."""
    first_launch_ns: int = 200_000
    """† A kernel's first launch that takes this long also loads its code."""
    optimizer_kernels: int = 100
    """† A fused optimizer needs a handful of kernels a step; this many are one for each tensor."""
    recompute_share: float = 0.8
    """† From this share of forward time on whose kernels come again in backward, the forward is run twice."""
    overhead_share: float = 0.02
    """† From this share of the time on, the profiler's own work is said."""
    checkpoint_bytes: int = 16 << 20
    """† So much copied to the host between two steps is a state being saved."""
    length_variation: float = 0.1
    """† Coefficient of variation of compute over ranks and steps from which sequence lengths are suspected."""
    length_correlation: float = 0.9
    """Correlation of forward with backward time that says: long input, not a slow GPU (published practice)."""
    jitter_ratio: float = 1.5
    """† p95 over median transfer of one kind of collective from which the network is called jittery."""
    jitter_count: int = 20
    """† Fewer collectives of one kind than this have no p95."""
    skew_share: float = 0.5
    """† Waiting beyond this share of the transfer is skew between ranks, not the network."""
    stage_ratio: float = 1.10
    """† A pipeline stage that computes this × the median stage has more than embeddings or a loss to carry."""
    pushed_share: float = 0.03
    """† Waits that push this share of the step out of the shade of compute matter, however little of the waiting itself
    is exposed: more than natural spread (1.5-1.8 %)."""
    likely_wait_ratio: float = 2.5
    """† A collective that takes this × what others of its op and size take is likely waiting for a rank that was not
    captured."""
    slow_link_ratio: float = 0.6
    """† A communicator whose bus bandwidth is below this × that of the others of its kind is slow."""
    same_job_ns: int = 3_600_000_000_000
    """† Captures further apart in time than this (an hour) are of different jobs, unless they share a communicator."""
    same_job_kernels_share: float = 0.05
    """† Captures on one kind of GPU with less of their compute time in kernels of the same names are other models'."""
    clock_tolerance_ns: int = 2_000
    """GPU timestamps tick at 32 ns to 1 µs; ends of one collective differ by up to ±2 µs (measured)."""
    timestamp_tick_ns: int = 1_000
    """The coarsest tick of GPU timestamps that was measured."""
    clock_residual_ns: int = 50_000
    """† Clocks that fit no better than this are called not alignable; real jobs fit to 1.1-1.8 µs."""
    end_spread_share: float = 1 / 16
    """† Ends of one collective differ by at most this share of the time to the next one's end."""
    arrival_spread_ratio: float = 4.0
    """† Ranks that arrive this × as far apart as they leave wait for each other: they communicate."""
    together_share: float = 0.95
    """† In this share of its collectives nobody of a group leaves before all have arrived."""
    equal_spread_ratio: float = 3.0
    """† Pairs of ranks that leave at most this × as far apart as the closest pair are one group with it."""
    wall_clock_search_ns: int = 100_000_000
    """† Within this of the wall clocks' offset sends and receives are looked for that end together."""
    coarse_clock_error_ns: int = 60_000_000_000
    """† Wall clocks of hosts may be wrong by this much (a minute), not more."""
    headline_explained_share: float = 0.75
    """† Share of the largest loss that findings must explain for one of them to be the report's headline."""
    headline_named_share: float = 0.25
    """† A finding with a named cause leads over unexplained time if it saves at least this share of what that does."""
    gain_of_cost: float = 1.25
    """† Fixing a cause gains at most this times what it costs: what waits behind it gains too. More than that, and the
    model of the fix does not hold."""
    gain_of_wait: float = 2.0
    """† For communication and stragglers among several ranks, this times as much: what queues behind late collectives
    is the cost of other findings."""
    gain_slack: float = 0.01
    """† And this share of the step."""
    headline_unexplained_share: float = 0.05
    """† Exposed communication without a known cause is said beside the headline from this share of it on."""
    replay_lag_ns: int = 20_000
    """† What starts this much after all that it is known to wait for waited for nothing else: it is the delay of
    launch, event or driver, and kept in a replay; more than this is unexplained."""
    replay_launch_ns: int = 10_000
    """† From the return of its launch call an idle GPU starts a kernel within this."""
    replay_wake_ns: int = 50_000
    """† A host thread that waits for the GPU goes on within this."""
    replay_error_share: float = 0.05
    """† A replay without changes that misses the measured step by more than this share predicts nothing."""
    replay_polls_share: float = 0.75
    """† Of the pauses between two kinds of launches this share ends with the GPU's work where the host waits for it;
    less is chance."""
    replay_makers_share: float = 0.5
    """† The compute that makes the gradients of a step's last reduction lasts at least this share of it: else the
    capture does not show when most of them were ready, and no gain is told for reducing them in pieces."""
    pageable_return_ns: int = 100_000
    """† The call of a pageable copy that returns at most this long before the copy ends had waited for it: real ones
    return 13 to 47 µs before."""
    pinned_bytes_per_s: float = 12e9
    """† What copies of pinned memory reach at least on any link of 16 lanes (PCIe 3.0 and later, measured)."""
    replay_gaps: int = 10
    """† Fewer gaps between kernels that were queued do not tell what is usual."""
    graph_gap_ns: int = 1_000
    """† Between two kernels of a CUDA graph, where the capture does not show how kernels that are queued follow each
    other."""
    collective_latency_ns: int = 20_000
    """† What a collective takes whatever its bytes: a faster network shortens only the rest."""
    alone_share: float = 0.1
    """† A kernel with communication beside it for less than this share of its time runs alone."""
    replay_operations: int = 100_000
    """† Steps are replayed together up to this many operations over all ranks, which takes about two seconds."""
    replay_steps: int = 16
    """† More steps than this are not replayed together."""
    handover_ns: int = 5_000
    """† What starts this soon after something else ended was waiting for it."""
    kernel_gap_ns: int = 5_000
    """† A shorter gap between two kernels is the time that starting a kernel takes."""
    compute_stream_share: float = 0.1
    """† A stream with this share of a rank's compute is a compute stream."""
    first_gather_work_share: float = 0.01
    """† Compute of a step launched ahead of its first gather, up to this share, is preparation of the input."""
    first_gathers: int = 4
    """† So many gathers before any compute of the step are many small units: a root unit, and what is prefetched behind
    it, are two or three."""
    microbatch_ratio: float = 2.0
    """† Forward passes of one step that differ by more are no microbatches: activations are computed again."""
    last_reduce_share: float = 0.5
    """† A reduction that the rest of the backward pass hides less of than this is one that ends the pass."""
    layer_collectives: int = 4
    """† So many reductions in the forward pass of a step are those of split layers: two a layer."""
    forward_reduced_share: float = 0.25
    """† And they take this share of all reductions of their communicator: statistics of a batch take less."""
    parallelism_share: float = 0.6
    """† In this share of its operations a communicator shows what it is for: attention or experts beside them."""
    wide_gap_ratio: float = 4.0
    """† Compute between two reductions, this × the median, is a pass without any."""
    wide_gap_share: float = 0.25
    """† Passes with less of the compute than this are the head or the optimizer, not the forward pass."""
    rate_limiter_ns: int = 50_000
    """† A gather launched this soon after its thread had waited for an event was held back by it."""
    queued_gathers: int = 3
    """† So many gathers that start when a reduction ends are no coincidence."""
    blocking_reductions: int = 2
    """† So many reductions that hold up the compute behind them are no coincidence."""
    launch_order_share: float = 0.01
    """† Up to this share of operations may start out of the order of launch where order of launch rules."""
    latency_bound_ns: int = 50_000
    """† A collective shorter than this is mostly latency."""
    latency_bound_count: int = 20
    """† From so many short collectives of one kind in a step on, wrapping larger units is worth trying."""
    link_near_share: float = 0.7
    """† Copies at this share of their link's specified rate run as fast as it lets them: headers take the rest."""
    link_bound_share: float = 0.8
    """† A collective at this share of its link's peak is as fast as it gets."""
    beside_share: float = 0.5
    """† A kernel with this share of its time under a collective runs beside it."""
    contention_kernels: int = 2
    """† Fewer kernels of one name and grid, beside a collective or alone, are no comparison."""
    same_work_ratio: float = 1.1
    """† Kernels of one name and grid whose lengths alone differ by more (90 % over 10 %) do different work."""
    launch_rows_share: float = 0.95
    """† Below this share of kernels with a launch row, attribution by NVTX is called incomplete."""
    launch_rows_least: float = 0.5
    """† And below this share, what rests on launches is of low confidence."""
    few_steps: int = 3
    """† Fewer steady steps than this do not show whether something happens in every step."""
    still_ns: int = 1_000_000_000
    """† Who waits this long at the end of its capture stands still; less may be the capture's end cutting it off."""
    still_steps: float = 3.0
    """† And for this many of its own median steps: a slow step is no hang."""
    still_many_steps: float = 200.0
    """† Or for this many of its own median steps, however short these are."""
    still_least_ns: int = 100_000_000
    """† But never for less: a capture takes that long to end. A shorter call is none that lasts until the end."""
    lasting_slack: float = 0.01
    """† What ends this share of its own length before the capture does has lasted until its end."""
    ended_together_ns: int = 100_000
    """† Kernels of one collective that end within this on all ranks have ended together: their last step is shared."""
    most_mismatches: int = 100
    """† Mismatched collectives that are told of each communicator; after one, the rest are often shifted as well."""
    compare_confidence: float = 0.9
    """† Of the interval of a difference between two runs: either direction is claimed wrongly in at most 5 of 100
    comparisons, and three steps in each run can be enough."""
    same_run_share: float = 0.005
    """† Two runs of an unchanged job differ by this share of the step, which the spread of steps does not show."""


DEFAULT = Thresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """What `tracekit plan` takes for granted unless told otherwise."""

    usable_memory_share: float = 0.92
    """† Of a GPU's memory; the rest is CUDA's context, NCCL's buffers and fragmentation."""
    utilisation: float = 0.5
    """† Share of the peak that kernels reach: published training runs reach 0.34 to 0.57 a step."""
    pcie_gb_per_s: float = 25.0
    """† One direction of PCIe 4.0 x16 as measured by copies (31.5 by the specification)."""
    network_gb_per_s_per_gpu: float = 50.0
    """One direction of the 400 Gbit/s adapter that HGX systems have for each GPU."""
    gpus_per_node: int = 8
    """As in HGX systems."""
    units: int = 32
    """† Units that are gathered one by one, where the model's layers are not known."""
    tie_share: float = 0.03
    """† Steps that differ by less are called equally long."""


PLANNING = Planning()
