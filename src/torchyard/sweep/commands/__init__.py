"""Commands of sweeps: `sweep run`, `list`, `show`, `report` and `cancel`."""
