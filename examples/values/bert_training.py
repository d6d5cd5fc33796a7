"""Training steps of a BERT that predicts masked words, on random sentences.

    torchyard values --deep examples/values/bert_training.py --layers 2

Needs torch and transformers. The model is made from its configuration, so nothing is downloaded.
"""

import argparse

import torch
from transformers import BertConfig, BertForMaskedLM

PADDING, MASK, FIRST_WORD = 0, 103, 1000
SHARE_MASKED = 0.15
NO_LABEL = -100


def main() -> None:
    """Train for a few steps."""
    parser = argparse.ArgumentParser(description="Train a BERT on random sentences.")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12, help="12 make a BERT-base")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=given.layers)
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    for _ in range(given.steps):
        words = torch.randint(FIRST_WORD, config.vocab_size, (given.batch, given.length))
        lengths = torch.randint(given.length // 2, given.length + 1, (given.batch, 1))
        attention_mask = (torch.arange(given.length)[None, :] < lengths).long()
        words = words.masked_fill(attention_mask == 0, PADDING)
        masked = (torch.rand(words.shape) < SHARE_MASKED) & (attention_mask == 1)
        labels = words.masked_fill(~masked, NO_LABEL)
        output = model(
            input_ids=words.masked_fill(masked, MASK),
            attention_mask=attention_mask,
            labels=labels,
        )
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        print(f"loss {output.loss.item():.4f}")


if __name__ == "__main__":
    main()
