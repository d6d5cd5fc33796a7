"""Reports of a bench run: terminal, Markdown, JSON, CSV and HTML (`torchyard report`)."""
