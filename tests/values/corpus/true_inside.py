"""Waste inside operators of torch that clean programs are known to meet, when looked at deeply."""

from __future__ import annotations

TRUE_INSIDE = {
    ("redundant write", "aten::nll_loss2d_backward"),  # zeroed twice
    ("dead initialisation", "aten::slice_backward"),  # of a slice that takes everything
    ("guard that never fires", "aten::_safe_softmax"),
    ("guard that never fires", "aten::_euclidean_dist"),
}
"""(pattern, outermost operator)."""
