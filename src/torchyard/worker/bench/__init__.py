"""Measuring one workload inside the target: variants, timing, relocation, metrics and the accuracy checks."""
