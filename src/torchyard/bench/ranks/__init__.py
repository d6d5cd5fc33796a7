"""Several ranks of one process group: which requests make sense, and how their processes answer as one worker."""
