"""NVTX annotations that tracekit understands completely; drop it into any loop.

::

    from instrumented_trainer import annotate

    annotate.describe(strategy="fsdp2", batch=4)          # once, after init_process_group
    annotate.collectives()                                # once
    annotate.modules({f"layers.{i}": m for i, m in enumerate(model.layers)})
    with annotate.step(n):                                # each step
        with annotate.phase("forward"): ...

The vocabulary (docs/reference/nvtx.md): domain ``tracekit`` holds steps, phases, modules and one mark about the run;
domain ``tracekit.comm`` holds a range a collective, named by its op, with the bytes of the full tensor as payload;
inside it domain ``tracekit.comm.detail`` holds ``GROUP/DTYPE`` with the sequence number as payload. Numbers travel as
payloads because every new text costs tens of microseconds under a profiler.

Nothing is recorded inside compiled graphs: a range there would break the graph.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import nvtx
import torch
import torch.distributed as dist

from instrumented_trainer.errors import TrainerError
from instrumented_trainer.failures import peer_lost

DOMAIN = "tracekit"
COMM = "tracekit.comm"
DETAIL = "tracekit.comm.detail"

_lock = threading.Lock()
_enabled = True


def enable(on: bool) -> None:
    """Turn recording on or off for this process; collectives are counted either way."""
    global _enabled  # noqa: PLW0603 - one switch a process, as in nvtx itself
    _enabled = on


def records() -> bool:
    """Whether a range would go anywhere: newer nvtx hands out a dummy domain when no tool listens."""
    return _enabled and nvtx.enabled() and type(nvtx.get_domain(DOMAIN)).__name__ != "DummyDomain"


def check_profiler() -> None:
    """Under nsys with NVTX tracing on, make sure that ranges are recorded.

    nvtx 0.2.13 and later asks the profiler whether the domain is enabled; nsys up to 2023.4 answers no, and every
    range is dropped without a word.

    Raises:
        TrainerError: nothing would be recorded; says what to install.
    """
    traced = "NSYS_PROFILING_SESSION_ID" in os.environ and "NVTX_INJECTION64_PATH" in os.environ
    if _enabled and traced and not records():
        if not nvtx.enabled():
            raise TrainerError(
                "nsys is recording, but NVTX_DISABLE is set, so that no range is recorded", hint="unset it"
            )
        raise TrainerError(
            "this nsys does not see this nvtx: no range would be recorded",
            hint='pip install "nvtx==0.2.11" (or use a newer nsys, or --no-nvtx)',
        )


@functools.cache
def _range(name: str, domain: str) -> nvtx.annotate:
    return nvtx.annotate(name, domain=domain, color="blue", payload=0)


def _push(name: str, domain: str, value: int | None) -> nvtx.annotate:
    if value is None:
        return nvtx.annotate(name, domain=domain, color="blue").__enter__()
    template = _range(name, domain)
    with _lock:  # one object for each name: another thread must not change the payload between these two lines
        template.attributes.payload = value
        return template.__enter__()


@contextmanager
def span(name: str, value: int | None = None, *, domain: str = DOMAIN) -> Iterator[None]:
    """A range on this thread, with an optional integer payload; nothing inside a compiled graph.

    A range that is left because another rank is lost stays open: the capture then shows where this rank stood.
    """
    if torch.compiler.is_compiling() or not records():
        yield
        return
    opened = _push(name, domain, value)
    try:
        yield
    finally:
        _close(opened)


def _close(opened: nvtx.annotate) -> None:
    if not peer_lost(sys.exc_info()[1]):
        opened.__exit__(None, None, None)


def step(number: int) -> Any:
    """The range of one optimizer step; its number is the payload."""
    return span("step", number)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """The range of a phase: data, forward, backward or optimizer; ``backward`` closes the last module's range."""
    with span(name):
        try:
            yield
        finally:
            if name == "backward" and not peer_lost(sys.exc_info()[1]):
                _backward.leave()


def describe(**facts: Any) -> None:
    """Mark what this process is: rank, world size, local rank, pid and ``facts``, as one JSON text.

    Call it again when a capture starts late, since a mark from before the capture is not in it.
    """
    if not records():
        return
    started = dist.is_available() and dist.is_initialized()
    run = {
        "rank": dist.get_rank() if started else 0,
        "world_size": dist.get_world_size() if started else 1,
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "pid": os.getpid(),
        **facts,
    }
    nvtx.mark(json.dumps(run, separators=(",", ":")), domain=DOMAIN)
    for label, ranks in _groups.members():
        _mark_group(label, ranks)


CAPTURE_PAUSE_S = 0.5
"""Pause after a capture range has opened or closed: the profiler reaches each process in its own time."""


@contextmanager
def capture(barrier: Callable[[], None], **facts: Any) -> Iterator[None]:
    """What ``nsys profile --capture-range`` waits for: the profiler API on a GPU, and an NVTX range ``capture``.

    The barriers keep the ranks together: under one nsys the first to open and the first to close decide for all.
    The mark of `describe` is set again inside.
    """
    gpu = torch.cuda.is_available()
    barrier()
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
    with span("capture"):
        time.sleep(CAPTURE_PAUSE_S)
        barrier()
        describe(**facts)
        yield
        if gpu:
            torch.cuda.synchronize()
        barrier()
    if gpu:
        torch.cuda.profiler.stop()
    time.sleep(CAPTURE_PAUSE_S)


class _Backward:
    """The module whose backward runs now, as a start/end range: on a GPU two threads may open and close it."""

    def __init__(self) -> None:
        self._open: Any = None

    def enter(self, name: str) -> None:
        self.leave()
        if records():
            self._open = nvtx.start_range(name, domain=DOMAIN)

    def leave(self) -> None:
        if self._open is not None:
            nvtx.end_range(self._open)
            self._open = None


_backward = _Backward()


def modules(units: Mapping[str, torch.nn.Module]) -> None:
    """Annotate ``fwd/NAME`` and ``bwd/NAME`` for modules that forward runs one after another.

    Call it after wrapping, with the outermost wrapper of each module: the ranges then hold the gathers of that
    module. A module's backward range begins when the gradient of its output is there, and ends when the next one begins
    or the phase ``backward`` ends.
    """
    for name, module in units.items():
        _annotate_module(name, module)


def _annotate_module(name: str, module: torch.nn.Module) -> None:
    opened: list[Any] = []

    def before(_module: torch.nn.Module, _args: Any) -> None:
        if not torch.compiler.is_compiling() and records():
            opened.append(_push(f"fwd/{name}", DOMAIN, None))

    def output(_module: torch.nn.Module, _args: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor) and out.requires_grad and not torch.compiler.is_compiling():
            out.register_hook(lambda _grad: _backward.enter(f"bwd/{name}"))

    def after(_module: torch.nn.Module, _args: Any, _out: Any) -> None:
        if opened and not torch.compiler.is_compiling():
            _close(opened.pop())

    # Around the hooks of FSDP, which gather in a pre-hook, and gather for backward in a hook on the output.
    module.register_forward_pre_hook(before, prepend=True)
    module.register_forward_hook(output, prepend=True)
    module.register_forward_hook(after, always_call=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One call of a collective on this rank."""

    op: str
    elements: int
    """Of the full tensor: gathered output, scattered input, reduced or broadcast tensor."""
    bytes: int
    dtype: str
    group: str
    group_size: int
    seq: int
    """Ordinal of the call in its group on this rank, from 1."""
    process_group: dist.ProcessGroup = field(repr=False, compare=False)


class _Groups:
    """Names and counts of the process groups that this rank has used."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._seq: dict[str, int] = {}

    def next(self, group: dist.ProcessGroup) -> tuple[str, int]:
        """(label, sequence number) of a collective that starts now."""
        name = group.group_name
        with _lock:
            label = self._labels.get(name)
            seq = self._seq[name] = self._seq.get(name, 0) + 1
        return label if label is not None else self._register(group), seq

    def _register(self, group: dist.ProcessGroup) -> str:
        wanted = "world" if group == dist.group.WORLD else group.group_desc.removeprefix("mesh_")
        if wanted in ("", "undefined"):
            wanted = "group"
        label, n = wanted, 1
        while label in self._ranks:
            n += 1
            label = f"{wanted}#{n}"
        self._labels[group.group_name] = label
        self._ranks[label] = tuple(dist.get_process_group_ranks(group))
        _mark_group(label, self._ranks[label])
        return label

    def members(self) -> list[tuple[str, tuple[int, ...]]]:
        """(label, global ranks) of each group used so far."""
        return list(self._ranks.items())


_groups = _Groups()


def _mark_group(label: str, ranks: tuple[int, ...]) -> None:
    if records():
        nvtx.mark(json.dumps({"group": label, "ranks": ranks}, separators=(",", ":")), domain=COMM)


# Function of torch.distributed -> (op, position and name of the full tensor, position of the group). Both generations
# of names are there: FSDP2 in torch 2.13 calls the ``_single`` ones, earlier versions and DeepSpeed the others.
_FUNCTIONS: dict[str, tuple[str, int, str, int]] = {
    "all_reduce": ("all_reduce", 0, "tensor", 2),
    "broadcast": ("broadcast", 0, "tensor", 2),
    "reduce": ("reduce", 0, "tensor", 3),
    "all_gather": ("all_gather", 0, "tensor_list", 2),
    "all_gather_single": ("all_gather", 0, "output_tensor", 2),
    "all_gather_into_tensor": ("all_gather", 0, "output_tensor", 2),
    "reduce_scatter": ("reduce_scatter", 1, "input_list", 3),
    "reduce_scatter_single": ("reduce_scatter", 1, "input", 3),
    "reduce_scatter_tensor": ("reduce_scatter", 1, "input", 3),
    "all_to_all_single": ("all_to_all", 1, "input", 4),
    "barrier": ("barrier", -1, "", 0),
}

Observer = Callable[[Collective], None]
_observers: list[Observer] = []
_inside = threading.local()


def observe(observer: Observer) -> None:
    """Call ``observer`` before each annotated collective, e.g. to count bytes."""
    _observers.append(observer)


def collectives() -> None:
    """Annotate the collectives of torch.distributed from now on; calling it again changes nothing.

    A range around an asynchronous call is the time that the host took to issue it, not the transfer.
    """
    for function, (op, position, name, group_position) in _FUNCTIONS.items():
        original = getattr(dist, function, None)
        if original is not None and not hasattr(original, "_tracekit"):
            setattr(dist, function, _annotated(original, op, position, name, group_position))


def _annotated(
    original: Callable[..., Any], op: str, position: int, name: str, group_position: int
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(_inside, "collective", False):
            return original(*args, **kwargs)
        group = kwargs["group"] if "group" in kwargs else args[group_position] if len(args) > group_position else None
        full = args[position] if len(args) > position >= 0 else kwargs.get(name)
        collective = _describe_call(op, full, group or dist.group.WORLD)
        if collective is None:
            return original(*args, **kwargs)
        _inside.collective = True
        try:
            for observer in _observers:
                observer(collective)
            with _span_of(collective):
                return original(*args, **kwargs)
        finally:
            _inside.collective = False

    call._tracekit = True  # type: ignore[attr-defined]
    return call


def _describe_call(op: str, full: Any, group: Any) -> Collective | None:
    if not isinstance(group, dist.ProcessGroup):  # not a member, or no process group at all: torch says what is wrong
        return None
    tensors = full if isinstance(full, list) else [full] if isinstance(full, torch.Tensor) else []
    elements = sum(tensor.numel() for tensor in tensors)
    label, seq = _groups.next(group)
    return Collective(
        op=op,
        elements=elements,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "none",
        group=label,
        group_size=group.size(),
        seq=seq,
        process_group=group,
    )


@contextmanager
def _span_of(collective: Collective) -> Iterator[None]:
    if not records():
        yield
        return
    outer = _push(collective.op, COMM, collective.bytes)
    inner = _push(f"{collective.group}/{collective.dtype}", DETAIL, collective.seq)
    try:
        yield
    finally:
        _close(inner)
        _close(outer)


def recompute(name: str) -> Any:
    """A ``context_fn`` for `torch.utils.checkpoint` that annotates the second forward as ``recompute/NAME``."""
    return lambda: (nullcontext(), span(f"recompute/{name}"))
