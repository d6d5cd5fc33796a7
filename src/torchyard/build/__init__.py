"""Building PyTorch and its companions from recipes: sources, environments, steps, checks, records."""
