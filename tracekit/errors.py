"""What can go wrong, as one small tree.

::

    TracekitError              message and hint; the command line prints both and picks the exit status
    ├── CaptureError           the capture cannot be read (exit status 3)
    │   └── NoGpuWorkError     it can be read and holds no rank (exit status 3)
    └── UsageError             the request makes no sense for these captures (exit status 2)
"""


class TracekitError(Exception):
    """Base of every error that a user can meet.

    ``message`` says what is wrong, in one line; ``hint`` says what to do about it, or is None.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CaptureError(TracekitError):
    """A capture cannot be read: not SQLite, not from nsys, damaged, locked, out of reach."""


class NoGpuWorkError(CaptureError):
    """The captures can be read and hold no rank: no GPU work at all, or only copies."""


class UsageError(TracekitError):
    """The request makes no sense for these captures, such as a rank that does not exist."""
