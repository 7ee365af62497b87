"""Which rank failed first. torchrun tells of the first exit that it noticed, which is often a victim's.

Every rank leaves its process id in the job's store. A rank that meets an error looks whether another process is gone
without a word, leaves its own error there, and waits a moment for the others'. One rank speaks for all. A rank that
torchrun ends looks too, without unwinding: what a profiler sees of it stays open.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

_LOST = re.compile(
    r"clos|reset by peer|timed? ?out|broken pipe|refused|aborted|unreachable|connectFull|Rank \d+ ", re.I
)
GRACE_S = 2.0


def peer_lost(error: BaseException | None) -> bool:
    """Whether an error says that another rank is gone or silent, rather than that something is wrong here."""
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None


class RollCall:
    """The ranks' last words, in the job's key-value store."""

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self._store, self._rank, self._world = dist.PrefixStore("tracekit", store), rank, world
        self._last = "no collective"
        self._store.set(f"alive/{rank}", json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))

    def observe(self, collective: Any) -> None:
        """Remember the collective that this rank is about to issue."""
        c = collective
        self._last = f"{c.op} {c.seq} of group {c.group} ({c.elements:,} {c.dtype})"

    def speak_when_terminated(self) -> None:
        """Let the signals that torchrun sends to the survivors name the culprit before they end this process."""

        def last_words(number: int, _frame: Any) -> None:
            signal.signal(number, signal.SIG_DFL)
            with suppress(RuntimeError, OSError):
                self._say({"signal": number})
                words, gone = self._listen(wait=False)
                guilty = gone or any("error" in w and not w["victim"] for w in words.values())
                if guilty and self._store.add("speakers", 1) == 1:
                    say(self._verdict(words, gone, f"ended by {signal.Signals(number).name}"))
            os.kill(os.getpid(), number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, last_words)

    def leave(self) -> None:
        """This rank has finished in good order."""
        self._say({"done": True})

    def explain(self, error: BaseException) -> str | None:
        """One line that names the rank that failed first, or None when another rank says it.

        Waits up to GRACE_S for the other ranks' words.
        """
        text = f"{type(error).__name__}: {_first_line(error)}"
        victim = peer_lost(error)
        try:
            self._say({"at": time.time(), "error": text, "victim": victim, "last": self._last})
            words, gone = self._listen(wait=victim)
            if self._store.add("speakers", 1) != 1:
                return None
        except (RuntimeError, OSError):  # the store went with the rank that held it
            return f"rank {self._rank} stopped: {text}"
        return self._verdict(words, gone, text)

    def _say(self, words: dict[str, Any]) -> None:
        self._store.set(f"words/{self._rank}", json.dumps(words))

    def _listen(self, *, wait: bool) -> tuple[dict[int, dict[str, Any]], list[int]]:
        deadline = time.monotonic() + GRACE_S
        while True:
            words = {r: self._read(f"words/{r}") for r in range(self._world) if self._store.check([f"words/{r}"])}
            silent = [r for r in range(self._world) if r not in words]
            gone = [r for r in silent if self._is_gone(r)]
            spoke = [r for r, w in words.items() if "error" in w and not w["victim"]]
            if gone or spoke or not silent or not wait or time.monotonic() > deadline:
                return words, gone
            time.sleep(0.05)

    def _read(self, key: str) -> dict[str, Any]:
        return json.loads(self._store.get(key))

    def _is_gone(self, rank: int) -> bool:
        """Whether a process of this host has ended; of another host nothing is known."""
        if not self._store.check([f"alive/{rank}"]):
            return False
        alive = self._read(f"alive/{rank}")
        if alive["host"] != socket.gethostname():
            return False
        try:
            state = Path(f"/proc/{alive['pid']}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            return True
        return state in "ZX"

    def _verdict(self, words: dict[int, dict[str, Any]], gone: list[int], text: str) -> str:
        here = f"rank {self._rank} stopped: {text}"
        own = sorted((w["at"], r) for r, w in words.items() if "error" in w and not w["victim"])
        if own:
            first = own[0][1]
            return f"rank {first} failed first: {words[first]['error']}"
        if gone:
            return f"rank {_join(gone)} failed first: its process is gone without a word ({here})"
        silent = [r for r in range(self._world) if r not in words]
        if silent:
            return f"rank {_join(silent)} stopped answering first: its process still runs ({here})"
        done = [r for r, w in words.items() if "done" in w]
        if done:
            return f"rank {_join(done)} finished before the others: it took part in fewer collectives ({here})"
        ended = [r for r, w in words.items() if "signal" in w]
        if ended:
            return f"rank {_join(ended)} was ended by a signal ({here})"
        places = "; ".join(f"rank {r} at {w['last']}" for r, w in sorted(words.items()))
        return f"the ranks do not agree on the next collective: {places} ({here})"


def say(line: str) -> None:
    """One line of the trainer's on standard error."""
    print(f"instrumented_trainer: {line}", file=sys.stderr, flush=True)


def _join(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
