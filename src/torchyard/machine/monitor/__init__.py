"""The load monitor: samples what else happens on the machine during a measurement, without root.

A guard checks one block; the load monitor samples all the time and names the processes, interrupts
and kernel work. `load_monitor.py` samples, `sources.py` reads.
"""
