"""Histories of workloads over many runs, and the changes detected in them."""
