"""The roofline of a run, and the measured peak of its machine (`torchyard machine peak`)."""
