"""Faults to inject, so that a diagnosis can be seen at work. docs/reference/trainer.md says what each capture shows."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from instrumented_trainer import annotate
from instrumented_trainer.config import Config

DEFAULT_SIZE = {
    "slow-rank": 20,  # matrix products a layer
    "slow-link": 16,  # times the bytes of every collective
    "data-stall": 200,  # ms a step
    "gc": 300_000,  # live objects to walk
    "sync": 1,  # blocking reads a layer
    "hang": 1e9,  # seconds
    "exit": 1,  # exit status
    "extra-collective": 1024,  # elements
    "skip-step": 1,  # steps
    "reorder": 1024,  # elements
    "size-mismatch": 2,  # times the size of the others
}


class Faults:
    """One fault of the configuration, asked at fixed places of the training loop whether it strikes there.

    Built on every rank alike, since some faults need a process group of their own.
    """

    def __init__(self, config: Config, rank: int, world: int, device: torch.device) -> None:
        self.kind, self.first_step = config.fault, config.fault_step
        self.culprit = config.fault_rank if config.fault_rank is not None else world - 1
        self.rotates = config.fault == "gc" and config.fault_rank is None
        self.rank, self.world, self.device = rank, world, device
        self.size = config.fault_size or DEFAULT_SIZE.get(config.fault or "", 0)
        self.step = -1
        self._groups = (
            [dist.new_group(group_desc=name) for name in ("first", "second")] if self.kind == "reorder" else []
        )
        self._live: list[Any] = []

    def attach(self, layers: nn.ModuleList) -> None:
        """Let the faults that strike inside forward do so."""
        if self.kind in ("slow-rank", "sync"):
            for layer in layers:
                layer.register_forward_pre_hook(self._in_layer)
        if self.kind == "hang":
            layers[len(layers) // 2].register_forward_pre_hook(self._hang)
        if self.kind == "slow-link":
            annotate.observe(self._repeat_on_the_wire)

    def _strikes(self, kind: str) -> bool:
        return self.kind == kind and self.rank == self.culprit and self.step >= self.first_step

    def _strikes_once(self, kind: str) -> bool:
        return self._strikes(kind) and self.step == self.first_step

    def begin_step(self, step: int) -> None:
        """The step's number; a garbage collection or the end of the process happen here."""
        self.step = step
        if self.rotates:
            self.culprit = step % self.world
        if self._strikes("gc"):
            self._collect_garbage()
        if self._strikes_once("exit"):
            os._exit(int(self.size))  # no clean-up: as if the process had been killed

    def skips_step(self) -> bool:
        """Whether this rank leaves this step out."""
        return self._strikes("skip-step") and self.step < self.first_step + self.size

    def load_data(self) -> None:
        """Called where the next batch is made."""
        if self._strikes("data-stall"):
            time.sleep(self.size / 1000)

    def before_optimizer(self) -> None:
        """Called between backward and the optimizer step: collectives that do not belong there."""
        elements = int(self.size)
        if self._strikes_once("extra-collective"):
            dist.all_reduce(torch.zeros(elements, device=self.device))
        if self.kind == "size-mismatch" and self.step == self.first_step:
            factor = elements if self.rank == self.culprit else 1
            dist.all_reduce(torch.zeros(1024 * factor, device=self.device))
        if self.kind == "reorder" and self.step == self.first_step:
            groups = self._groups[::-1] if self.rank == self.culprit else self._groups
            for group in groups:
                dist.all_reduce(torch.zeros(elements, device=self.device), group=group)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)

    def _in_layer(self, _module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if self._strikes("slow-rank"):
            a = torch.ones(512, 512, device=self.device)
            for _ in range(int(self.size)):
                a = torch.tanh(a @ a)
        if self._strikes("sync"):
            for _ in range(int(self.size)):
                args[0].detach().float().sum().item()

    def _hang(self, *_: Any) -> None:
        if self._strikes_once("hang"):
            time.sleep(self.size)

    def _collect_garbage(self) -> None:
        if not self._live:
            for i in range(int(self.size)):
                node: list[Any] = [i]
                node.append(node)  # a cycle, which only the collector can follow
                self._live.append(node)
        with annotate.span("gc"):
            gc.collect()

    def _repeat_on_the_wire(self, collective: annotate.Collective) -> None:
        """Move ``size - 1`` times the bytes of a collective before it: every rank of a ring feels its slowest link."""
        if self.step < self.first_step or collective.group_size < 2:
            return
        shard = max(1, collective.elements // collective.group_size)
        dtype = getattr(torch, collective.dtype, None)
        if dtype is None:
            return
        mine = torch.zeros(shard, dtype=dtype, device=self.device)
        all_of_them = [torch.empty_like(mine) for _ in range(collective.group_size)]
        for _ in range(int(self.size) - 1):
            dist.all_gather(all_of_them, mine, group=collective.process_group)
