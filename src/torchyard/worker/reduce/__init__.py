"""The part of `torchyard reduce` in the target: capture a graph, cut programs out of it, and time them."""
