"""The commands `torchyard results` and `torchyard baseline`, and options on kept runs."""
