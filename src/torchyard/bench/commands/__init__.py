"""Commands of measuring: `bench`, `batch-size`, `report`, `target` and `workloads`."""
