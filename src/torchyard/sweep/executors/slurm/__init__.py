"""Run cells as jobs of a Slurm cluster."""
