"""Find the wasted work of a program by its values. Runs inside the target.

Standard library and torch only, Python 3.8 and newer. The path of a finding:

- `run_program.py`, `program.py`: start the user's program with a profiler around it
- `profiling_session.py`, `dispatch_mode.py`: intercept operators; scan what they wrote (`scanning/`)
- `patterns/`: recognize waste in an observation; `findings.py`: count it by cause
- `proofs/proof.py`, `proofs/trials.py`, `proofs/certainty.py`: is it waste for every input?
- `surveys/`: steps between the closely observed ones, scanned at low cost
- `pricing/`: what the waste costs, in the program and alone; native runs
- `operator_sweep.py`, `operator_cases/`: operators of PyTorch itself instead of a program
"""
