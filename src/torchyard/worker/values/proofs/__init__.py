"""Prove that work is wasted for every input, or test it with other values. Start with `proof.py`.

`proof.py` decides what is proven and what goes to trial, `trials.py` runs the trials,
`certainty.py` gives the finding its word. Below them: `replay.py` runs an operator again,
`trial_inputs.py` makes its arguments, `straight_line.py` and `syntax.py` read the source of the
program.
"""
