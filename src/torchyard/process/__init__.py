"""Start, monitor, query and end worker processes. Linux only; knows nothing about measuring."""
