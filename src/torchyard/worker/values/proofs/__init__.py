"""Prove that work is wasted for every input, or test it with other values. Start with `proof.py`.

`proof.py` decides what is proven and what is tested, `trials.py` runs the trials, `certainty.py`
assigns the certainty. Below them: `replay.py` runs an operator again, `trial_inputs.py` creates its
arguments, `straight_line.py` and `syntax.py` analyze the source of the program.
"""
