"""Kernels by class: what their names tell, unless the user says otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracekit.comm_kernels import op_in
from tracekit.errors import UsageError
from tracekit.kernels import KernelName, describe_kernel

OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce", "send_recv", "barrier")
"""Collectives that a user can say a kernel carries out."""


@dataclass(frozen=True, slots=True)
class KernelClasses:
    """What the user says of kernels, by regular expressions that are searched in their names.

    ``comm`` goes before ``compute``, and both before what is known of names.
    """

    comm: tuple[tuple[str, str | None], ...] = ()
    """(pattern, op or None where the name tells it)."""
    compute: tuple[str, ...] = ()

    def describe(self, name: str) -> KernelName:
        """What a kernel is, by the user's word or by its name."""
        known = describe_kernel(name)
        for pattern, op in self.comm:
            if re.search(pattern, name):
                said = op or known.op or op_in(known.short)
                return replace(known, comm=True, op=said, family="comm", source="the user", suspected=False)
        if self.says_compute(name):
            family = "other" if known.comm else known.family
            return KernelName(comm=False, op=None, short=known.short, family=family)
        return known

    def says_compute(self, name: str) -> bool:
        """Whether the user has a kernel count as compute, wherever it is launched."""
        return any(re.search(pattern, name) for pattern in self.compute) and not any(
            re.search(pattern, name) for pattern, _ in self.comm
        )


BY_NAME = KernelClasses()
"""What names alone tell."""


def kernel_classes(comm: Sequence[str], compute: Sequence[str]) -> KernelClasses:
    """Parse ``PATTERN[=op]`` and ``PATTERN``. Raises `UsageError` for what is no pattern, or no collective."""
    pairs: list[tuple[str, str | None]] = []
    for text in comm:
        pattern, equals, op = text.rpartition("=")
        named = op.strip().lower().replace("-", "_")
        if equals and re.fullmatch("[a-z_]+", named):
            if named not in OPS:
                raise UsageError(f"{text!r}: {op.strip()!r} is no collective", hint=f"It is one of {', '.join(OPS)}.")
            pairs.append((_checked(pattern), named))
        else:
            pairs.append((_checked(text), None))
    return KernelClasses(tuple(pairs), tuple(_checked(text) for text in compute))


def _checked(pattern: str) -> str:
    if not pattern.strip():
        raise UsageError("a pattern for kernels is empty: it would fit all", hint="Name a kernel.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is no regular expression: {error}", hint=f"Meant as it is? Write {re.escape(pattern)!r}."
        ) from None
    return pattern
