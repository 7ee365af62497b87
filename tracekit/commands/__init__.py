"""The commands, one file each.

Everything heavy is imported inside them, so that ``tracekit --help`` answers at once.
"""
