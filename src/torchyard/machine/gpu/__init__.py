"""GPUs: access to the vendors' libraries and drivers, and why they are unavailable."""
