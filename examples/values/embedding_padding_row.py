"""An embedding that writes zeros over rows that are zero.

    torchyard values examples/values/embedding_padding_row.py
    torchyard values --deep examples/values/embedding_padding_row.py --today

For some months of 2020 and 2021 the embedding of PyTorch set the rows of its padding index to zero
after each look-up, though their weight is zero from the start (pytorch/pytorch issue 49663). Rebuilt
here in Python; `--today` runs the operator as it is now, which looks rows up and does no more.
"""

import argparse

import torch
from torch import nn

PADDING = 0


class OldEmbedding(nn.Embedding):
    """An embedding as it was."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """A row for each word."""
        rows = self.weight.index_select(0, words.flatten())
        is_padding = (words.flatten() == PADDING)[:, None]
        rows.masked_fill_(is_padding, 0)
        return rows.view(*words.shape, -1)


def main() -> None:
    """Look up a few batches of sentences."""
    parser = argparse.ArgumentParser(description="An embedding that clears what is clear.")
    parser.add_argument("--today", action="store_true", help="the operator as it is now")
    given = parser.parse_args()
    torch.manual_seed(0)
    kind = nn.Embedding if given.today else OldEmbedding
    embedding = kind(1000, 256, padding_idx=PADDING)
    with torch.no_grad():
        for _ in range(8):
            words = torch.randint(1, 1000, (16, 64))
            words[:, 40:] = PADDING
            embedding(words)


if __name__ == "__main__":
    main()
