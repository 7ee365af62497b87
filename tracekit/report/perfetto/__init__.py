"""The analysis as a Perfetto trace: every row on one clock, with its causes, arrows and counters."""
