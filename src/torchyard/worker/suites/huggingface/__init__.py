"""The suite `huggingface`: models of the target's transformers, with random weights."""
