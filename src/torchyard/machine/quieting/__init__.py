"""Quiet a machine and restore it exactly: settings, journal, restore process."""
