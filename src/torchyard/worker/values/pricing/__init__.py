"""What wasted work costs: native runs of the program, timed call sites, operators timed alone."""
