"""What can be set for a workload on this machine, and how the winner of a race is written down."""
