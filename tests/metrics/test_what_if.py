"""Steps with something changed against the same job laid out so by the samples' simulator, which shares no code."""

import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tracekit
from tracekit.errors import UsageError
from tracekit.options import Options

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
sys.path.append(str(SAMPLES))

import captured  # noqa: E402
import jobs  # noqa: E402
from layout import Job  # noqa: E402
from nsys_schema import NSYS_2026  # noqa: E402
from nsys_writer import Writer  # noqa: E402
from placed import COMPUTE, SCATTER, ms, us  # noqa: E402
from strategies import Ddp, Fsdp2, Zero3  # noqa: E402
from train import train  # noqa: E402
from truth import step_windows  # noqa: E402

SHALLOW = replace(jobs.HALF_BATCH, layers=3)
SHORT = replace(SHALLOW, batch=1)
MANY_SMALL = replace(SHALLOW, hidden=512, layers=5, batch=1)
STEPS = 5


def lay_out(strategy=Fsdp2, *, model=SHALLOW, job=Job, gigabytes_per_s=352.0, world_size=4, **settings):
    """As `jobs.lay_out`, with the network's speed and another simulator to choose."""
    made = job(seed=21, world_size=world_size, collective_kernels=jobs.kernel_names("f32"), **settings)
    trainer = strategy(made, model, made.communicator(0x51A7, gigabytes_per_s))
    train(trainer, STEPS)
    return trainer


def replayed(strategy, folder, *changes):
    (capture,) = jobs.one_report("job", strategy.job)
    path = Writer(captured.as_counted(strategy.job, [capture]), capture, NSYS_2026).write(folder)
    found = tracekit.analyze(tracekit.open(path), Options(what_if=changes)).replay
    assert found.reason is None
    assert len(found.steps) in (STEPS - 1, STEPS - 2)  # without the first, and without a last one that is cut off
    return found


def step_time(strategy, steps=STEPS - 1):
    """Mean over ranks and so many steps, without the first, which loads kernels."""
    ranks = strategy.job.ranks
    return statistics.mean(end - start for rank in ranks for _, start, end in step_windows(rank)[1 : 1 + steps])


def compare(tmp_path, change, now, then, least=0.05):
    """A change of the job ``now`` predicts ``then`` within 5 %, and is worth at least a twentieth of a step."""
    found = replayed(now, tmp_path, change)
    assert found.step_time_ns == pytest.approx(step_time(now, len(found.steps)), abs=1)
    truth = step_time(then)
    assert found.step_time_ns - truth > least * truth
    (prediction,) = found.what_if
    assert prediction.change == change
    assert prediction.step_time_ns == pytest.approx(truth, rel=0.05)
    assert prediction.gain_ns == found.step_time_ns - prediction.step_time_ns


@pytest.mark.parametrize("strategy", [Fsdp2, Zero3, Ddp])
@pytest.mark.parametrize("factor", [2, 6])
def test_a_faster_network(tmp_path, strategy, factor):
    now, then = lay_out(strategy, gigabytes_per_s=50), lay_out(strategy, gigabytes_per_s=50 * factor)
    compare(tmp_path, f"bandwidth={factor}x", now, then)


def test_a_host_that_is_never_late(tmp_path):
    """GIVEN kernels shorter than their launches, THEN they follow each other as with a host ten times as fast."""
    compare(
        tmp_path,
        "host=on-time",
        lay_out(Ddp, model=MANY_SMALL, between_ns=us(60)),
        lay_out(Ddp, model=MANY_SMALL, between_ns=us(1), launch_ns=us(1)),
        least=1,
    )


def test_all_slow_ranks_at_their_peers_pace(tmp_path):
    """GIVEN two of five a third slower, THEN mending one would gain nothing, and the finding's gain is that of both."""
    now = lay_out(world_size=5, slowdown=lambda rank, _: 4 / 3 if rank in (1, 3) else 1.0)
    compare(tmp_path, "straggler=off", now, lay_out(world_size=5))
    (path,) = tmp_path.glob("*.sqlite")
    (found,) = (f for f in tracekit.analyze(tracekit.open(path)).findings if f.rule == "TK201")
    assert sorted(found.ranks) == [1, 3]
    assert found.gain_ns == pytest.approx(step_time(now) - step_time(lay_out(world_size=5)), rel=0.05)


class OnDemand(Fsdp2):
    """Gathers a unit when it is reached."""

    prefetch = False

    def use(self, unit):
        if unit not in self.gathered:
            self.follow("gather_copy_in")
        super().use(unit)


class Ahead(Zero3):
    """Gathers the next unit when the one before it is used."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.coming = {}

    def fetch(self, unit):
        self.job.host(us(35))
        if unit not in self.coming:
            self.ask(unit)
        self.job.wait(COMPUTE, self.coming.pop(unit))

    def ask(self, unit):
        parts = 1 if unit == -1 else self.tensors_a_layer
        self.job.collective(self.communicator, "all_gather", self.unit_bytes(unit, 2), "gathers", parts=parts)
        self.coming[unit] = self.job.record("gathers")

    def before_forward(self):
        self.follow("gathers")
        super().before_forward()

    def launch_layer(self, kernels):
        first, *rest = kernels
        self.launch([first])
        if self.next is not None and self.next in self.units:
            self.follow("gathers")
            self.ask(self.next)
        self.launch(rest)

    def before_layer_forward(self, unit):
        self.next = unit + 1
        super().before_layer_forward(unit)

    def before_layer_backward(self, unit):
        self.next = unit - 1
        super().before_layer_backward(unit)


@pytest.mark.parametrize(("now", "then"), [(OnDemand, Fsdp2), (Zero3, Ahead)])
@pytest.mark.parametrize("gigabytes_per_s", [300, 60])
def test_gathers_one_ahead(tmp_path, now, then, gigabytes_per_s):
    jobs = (lay_out(strategy, gigabytes_per_s=gigabytes_per_s) for strategy in (now, then))
    compare(tmp_path, "prefetch=on", *jobs, least=0.01)


def test_each_pass_has_its_own_gain(tmp_path):
    """Together they are worth at least each, and one pass takes no more than both."""
    now = lay_out(OnDemand, model=SHORT, gigabytes_per_s=120)
    found = replayed(now, tmp_path, "prefetch=on", "prefetch=forward", "prefetch=backward").what_if
    both, forward, backward = (prediction.gain_ns for prediction in found)
    assert 0 < forward < both
    assert 0 < backward < both
    assert forward + backward == pytest.approx(both, rel=0.1)


class SynchronisingFsdp2(Fsdp2):
    """Reads a value back in each layer."""

    def before_layer_forward(self, unit):
        super().before_layer_forward(unit)
        self.job.synchronize(self.job.record(COMPUTE))
        self.job.host(us(300))


class Unsynchronised(SynchronisingFsdp2):
    """Does the same host work and does not wait for the device."""

    def before_layer_forward(self, unit):
        Fsdp2.before_layer_forward(self, unit)
        self.job.host(us(300))


def test_calls_that_do_not_wait_for_the_device(tmp_path):
    compare(tmp_path, "sync=off", lay_out(SynchronisingFsdp2, model=SHORT), lay_out(Unsynchronised, model=SHORT))


def test_data_on_time(tmp_path):
    now = lay_out(model=SHORT, pause=lambda _rank, place: ms(12) if place == "data" else 0)
    compare(tmp_path, "data=on-time", now, lay_out(model=SHORT))


class Reallocating(Fsdp2):
    """Gives memory back and asks for it again in each layer."""

    def before_layer_forward(self, unit):
        for rank in self.job.live:
            rank.call("cudaFree_v3020", ms(2.5))
            rank.call("cudaMalloc_v3020", ms(1.5))
        super().before_layer_forward(unit)


def test_an_allocator_that_does_not_go_to_the_device(tmp_path):
    compare(tmp_path, "allocator=off", lay_out(Reallocating, model=SHORT), lay_out(model=SHORT))


class Contended(Job):
    """Kernels take 1.5 times as long where a collective runs beside them when they start."""

    share = 1.5

    def kernel(self, kernel, stream=COMPUTE, *, source="kernel"):
        """Lengthen the kernel on the ranks where it starts under a collective."""
        everyone = self.live
        for rank in everyone:
            self.live = [rank]
            begin = max(rank.host_ns, rank.free_at.get(stream, 0))
            under = any(op.kind == "comm" and op.start <= begin < op.end for op in rank.ops[-60:])
            longer = replace(kernel, ns=round(kernel.ns * self.share)) if under else kernel
            super().kernel(longer, stream, source=source)
        self.live = everyone


class Uncontended(Contended):
    """The same, and nothing slows anything down."""

    share = 1.0


def test_no_contention(tmp_path):
    now, then = (lay_out(model=SHALLOW, job=job, gigabytes_per_s=120) for job in (Contended, Uncontended))
    compare(tmp_path, "contention=off", now, then)


class OwnScatters(Fsdp2):
    """Reduce-scatters on a communicator of their own."""

    scatters = None

    def among_shards(self, op, full_bytes, stream):
        if self.scatters is None:
            self.scatters = replace(self.communicator, hash=0x51A8, free_at={})
        self.job.collective(self.scatters if op == SCATTER else self.communicator, op, full_bytes, stream)


def test_communicators_apart(tmp_path):
    now, then = (lay_out(s, model=SHORT, gigabytes_per_s=60) for s in (Fsdp2, OwnScatters))
    compare(tmp_path, "communicators=separate", now, then)


def test_hosts_without_pauses(tmp_path):
    """GIVEN a pause of 12 ms in one step, at another place on each rank, THEN all steps are alike without."""
    pauses = {0: "fwd/layers.1", 1: "bwd/layers.2", 2: "data", 3: "fwd/layers.0"}
    step = dict.fromkeys(pauses, 0)

    def pause(rank, place):
        step[rank.rank] += place == "data"
        return ms(12) if step[rank.rank] == 3 and place == pauses[rank.rank] else 0

    compare(tmp_path, "pauses=off", lay_out(model=SHORT, pause=pause), lay_out(model=SHORT))


class OnComputeStream(Ddp):
    """Reduces gradients on the stream that computes."""

    reduction_stream = COMPUTE


@pytest.mark.parametrize("gigabytes_per_s", [352, 60])
def test_reductions_apart(tmp_path, gigabytes_per_s):
    """Where they are hidden then, and where they take longer than compute."""
    now, then = (lay_out(s, gigabytes_per_s=gigabytes_per_s) for s in (OnComputeStream, Ddp))
    compare(tmp_path, "collectives=apart", now, then)


@pytest.mark.parametrize("change", ["offload=apart", "saves=beside", "gathers=under-forward", "collectives=apart"])
def test_what_a_job_does_not_have_is_not_changed(change):
    """THEN there is no prediction of no gain, and the change is named as not made."""
    found = tracekit.analyze(tracekit.open(SAMPLES / "ddp.sqlite"), Options(what_if=(change, "bandwidth=2x")))
    assert [row.change for row in found.replay.what_if] == ["bandwidth=2x"]
    assert found.replay.not_made == (change,)


def test_changes_made_together_are_made_together(tmp_path):
    now = lay_out(gigabytes_per_s=50, slowdown=lambda rank, _: 1.3 if rank == 1 else 1.0)
    then = lay_out(gigabytes_per_s=100)
    compare(tmp_path, "bandwidth=2x,straggler=off", now, then)


@pytest.mark.parametrize(
    "text", ["", "bandwidth", "bandwidth=2", "bandwidth=0x", "bandwidth=2x,", "straggler=on", "x=y"]
)
def test_what_cannot_be_replayed_is_a_usage_error(text):
    with pytest.raises(UsageError, match="--what-if"):
        tracekit.analyze(tracekit.open(SAMPLES / "ddp.sqlite"), Options(what_if=(text,)))
