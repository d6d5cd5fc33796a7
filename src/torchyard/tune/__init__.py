"""Find the fastest settings for a workload on this machine, and prove it (`torchyard tune`)."""
