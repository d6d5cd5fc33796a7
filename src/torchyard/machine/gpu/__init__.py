"""GPUs: their vendors' libraries, what they say, and why they are not there."""
