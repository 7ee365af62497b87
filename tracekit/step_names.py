"""Names of host ranges that mark a whole training step: which family, and which number.

=============================================  ==========================================================
who writes it                                  names
=============================================  ==========================================================
torch's profiler                               ``ProfilerStep#12``
Lightning                                      ``[pl][profile]run_training_batch``
XLA (JAX, MaxText), domain ``TSL``             ``XlaModule:#hlo_module=jit_train_step,program_id=3#``
training loops of users, callbacks, verl       ``step``, ``step 12``, ``Step 12/100``, ``global_step=7``, ``GlobalStep``
the same                                       ``train_step``, ``Trainer step 3``, ``training iteration 4``
benchmarks of training                         ``Warm-up Step 3``, ``warmup_step3``, ``[epoch 1] step 3``
the same                                       ``iteration 12``, ``iter_3``, ``iteration[32,36)``, ``Batch 7``
=============================================  ==========================================================

Megatron-LM, NeMo and DeepSpeed mark functions and microbatches, no whole step. The number may stand anywhere behind the
word for a step. A name with any other word in it, such as ``eval step 3`` or ``load batch 3``, is no step.
"""

from __future__ import annotations

import re

STEP_FAMILIES: tuple[str, ...] = (
    "tracekit",
    "lightning",
    "ProfilerStep#",
    "XlaModule",
    "train_step N",
    "iteration N",
    "step N",
    "train_step",
    "iteration",
    "step",
    "batch N",
)
"""Families of step ranges in order of trust; the ranges of one family tile the training steps of a rank.

Lightning goes before the profiler, whose step it ends in mid-step (after ``training_step``, that is the forward) and
also counts in validation; its own range is one batch, a microbatch under gradient accumulation. XLA launches a step
inside its own range, whenever the program asked for it. Numbered ranges go before bare words: ``step`` alone may be the
optimizer's; a batch may be a microbatch.
"""
LONGEST = 60
"""Longer names tell a story."""

_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_STEP = {"step": "step", "steps": "step", "iteration": "iteration", "iter": "iteration", "batch": "batch"}
_TRAINING = frozenset({"train", "training", "trainer"})
_AROUND = _TRAINING | {"global", "warm", "up", "warmup", "epoch", "rank", "of", "benchmark", "timed", "measured"}
_BARE = frozenset(
    {"step", "global step", "trainer step", "train step", "iteration", "train iteration", "training iteration"}
)
"""Without a number. A bare ``training_step`` is Lightning's forward, a bare ``iter`` Python's."""
_OF_XLA = re.compile(r"(?:TSL:)?XlaModule:#(?:prefix=[^,#]*,)?hlo_module=([^,#]+)(?:,program_id=[0-9]+)?#?")
_AROUND_XLA = frozenset({"jit", "pjit", "pmap", "wrapped", "fn", "p", "train", "training", "trainer"})


def step_of(name: str) -> tuple[str, int | None] | None:
    """(family, number) of a user's step range; None for any other name."""
    if len(name) > LONGEST or not name.isascii():
        return None
    tokens = [token.lower() for token in _TOKEN.findall(name)]
    words = [token for token in tokens if not token.isdecimal()]
    steps = [i for i, token in enumerate(tokens) if token in _STEP]
    if len(steps) != 1 or not set(words) <= _AROUND | _STEP.keys():
        return None
    word = _STEP[tokens[steps[0]]]
    family = "train_step" if _TRAINING & set(words) and word != "batch" else word
    if len(words) == len(tokens):
        return (family, None) if " ".join(words) in _BARE and name.removesuffix("()")[-1:].isalpha() else None
    number = _number(tokens[steps[0] + 1]) if steps[0] + 1 < len(tokens) else None
    return None if number is None else (f"{family} N", number)


def xla_step(name: str) -> bool:
    """Whether a range of XLA's is a run of a program that is called a training step."""
    found = _OF_XLA.fullmatch(name)
    if found is None:
        return False
    words = [token.lower() for token in _TOKEN.findall(found[1]) if not token.isdecimal()]
    return words.count("step") == 1 and set(words) <= _AROUND_XLA | {"step"}


def _number(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) <= 18 else None
