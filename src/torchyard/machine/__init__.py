"""This machine: its facts, its settings, and what disturbs measurements on it.

- `facts`, `gpu`: what the machine is and how it is set, read without root.
- `knobs`: settings that can be read, written and restored; `quieting` applies and restores them.
- `guards`: readings around each measured block that tell whether the block can be trusted.
- `load_monitor`: continuous sampling that names other processes, interrupts and kernel work.
- `advice`: what makes measurements worse here, ranked, with a suggested fix.
- `system`: access to /proc, /sys and /dev, CPU topology, cpusets, tasks and programs.
"""
