"""The compile meter: a compiler launcher that schedules compiles by memory and measures them."""
