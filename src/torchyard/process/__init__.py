"""Start, watch, talk to and end worker processes. Linux only; knows nothing of measuring."""
