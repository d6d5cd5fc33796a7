"""Programs that try to make `torchyard values` call proven what is not, and programs with true waste."""
