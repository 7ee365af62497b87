"""tracekit: where every nanosecond of a sharded training step goes, from an Nsight Systems capture."""

from tracekit._version import __version__

__all__ = ["__version__"]
