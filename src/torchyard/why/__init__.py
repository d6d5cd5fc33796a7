"""`torchyard why`: attribute the difference between two variants to source operators.

`measurement.py` times the operators of both variants in further launches, `alignment.py` groups the
source operators that both sides share, `attribution.py` estimates the contribution of each group,
`ablation.py` changes one decision of the compiler at a time, `report.py` shows the result.
"""
