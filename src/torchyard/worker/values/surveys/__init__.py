"""Survey the steps between closely observed ones: scan every written byte, at low cost."""
