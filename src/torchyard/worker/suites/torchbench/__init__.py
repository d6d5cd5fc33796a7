"""The suite `torchbench`: the models of a checkout of pytorch/benchmark, through its own interface."""
