"""`torchyard reduce`: the smallest stand-alone script that still shows a difference.

The graph of a model is captured with all intermediate values. Delta debugging removes operators, then
shortens dimensions, as long as a sequential test shows that the loss of time stays.
"""
