"""Known waste inside torch operators that deep profiling finds in clean programs.

docs/explanation/waste-in-torch.md describes them; a sweep of torch 2.13 tested each operator separately.
"""

from __future__ import annotations

TRUE_INSIDE = {
    ("redundant write", "aten::nll_loss2d_backward"),  # zeroed twice
    ("dead initialisation", "aten::convolution"),  # transposed, where oneDNN does not do it
    ("dead initialisation", "aten::convolution_backward"),
    ("dead initialisation", "aten::huber_loss_backward"),
    ("dead initialisation", "aten::mse_loss_backward"),
    ("dead initialisation", "aten::slice_backward"),  # of a slice that takes everything
    ("dead initialisation", "aten::smooth_l1_loss_backward"),
    ("guard that never fires", "aten::_safe_softmax"),
    ("guard that never fires", "aten::_euclidean_dist"),
}
"""(pattern, outermost operator)."""
