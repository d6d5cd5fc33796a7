"""Sweep the operators of a PyTorch build for wasted work: `torchyard values sweep`."""
