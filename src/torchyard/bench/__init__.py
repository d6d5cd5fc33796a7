"""Compare variants on workloads: from a study to verdicts.

A study file and options become a `Request` (`request.py`), and that a `Study`
(`study_assembly.py`). A session measures one workload with all candidates (`session.py`): each
launch starts fresh processes (`launch.py`), checks, compiles and warms them (`preparation.py`), and
times rounds of blocks (`rounds.py`). Pairs of blocks become an estimate (`stats`), and that a
comparison with its verdict (`outcome.py`). `bench_run.py` runs all workloads of a study and records
them.
"""
