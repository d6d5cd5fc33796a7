"""Start, monitor, query and end worker processes. Linux only; independent of measuring."""
