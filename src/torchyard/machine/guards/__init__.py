"""Guards: cheap readings, without root, that tell whether a measured block can be trusted.

`host_guards.py` reads the host around each block, `gpu_guard.py` the GPU, and `block_check.py`
decides whether the block is clean. What concerns the worker's own process (run-queue wait, steal,
context switches, faults, the frequency probe) is read by the worker.
"""
