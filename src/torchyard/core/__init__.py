"""Types and formats that all packages share: studies, blocks, comparisons, units, records."""
