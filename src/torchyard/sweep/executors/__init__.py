"""Where the cells of a sweep run: on this machine, or as jobs of a Slurm cluster."""
