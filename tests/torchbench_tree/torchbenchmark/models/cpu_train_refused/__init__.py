"""Never loaded for training on a CPU."""

raise AssertionError("metadata.yaml says that this need not be tried")
