"""Access to the system below the facts and knobs: files, programs, tasks, CPUs and cpusets."""
