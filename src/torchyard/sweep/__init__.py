"""Bench whole suites: suites times modes, precisions and candidates, locally or on Slurm.

`plan.py` expands a request to a SweepPlan of cells, `driver.py` hands cells to an executor
(`executors/`), `cell.py` measures one cell inside a job, and `summary.py` computes means,
corrections and false alarms over all cells. A cell is one workload in one precision with all its
candidates; its result is an ordinary run folder.
"""
