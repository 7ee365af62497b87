"""Readers: one module a profiler. Only they know a profiler's file format; all of them yield `raw.RawCapture`."""
