"""Several ranks: processes that run one training step together. Runs inside the target.

`group.py` is the process group of this rank and the commands of rank 0, `runner.py` runs a variant in
all ranks, with DistributedDataParallel or FSDP2.
"""
