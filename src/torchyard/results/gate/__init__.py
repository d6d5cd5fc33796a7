"""The regression gate: fail when time or memory of a workload exceeds its limit."""
