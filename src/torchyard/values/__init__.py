"""Finds wasted work by values: runs programs under the watch, proves and prices what was found."""
