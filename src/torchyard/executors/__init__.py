"""Where the cells of a sweep run: here, or as jobs on a cluster."""
