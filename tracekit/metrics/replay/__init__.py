"""The dependency graph of a step and its replay: what a step would take if something were different."""
