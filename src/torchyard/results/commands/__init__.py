"""The commands `torchyard results` and `torchyard baseline`, and options of commands on stored runs."""
