"""Explain a failed build from its log: known causes with suggested fixes, or the first error."""
