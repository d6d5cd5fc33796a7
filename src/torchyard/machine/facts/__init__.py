"""What this machine is and how it is set, read without root."""
