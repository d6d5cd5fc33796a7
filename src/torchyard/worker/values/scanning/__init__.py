"""Scan the memory of tensors in one pass: hash, zeros, range, bits in use, unchanged elements."""
