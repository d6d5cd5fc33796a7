"""The part of `torchyard profile` that runs inside the target."""
