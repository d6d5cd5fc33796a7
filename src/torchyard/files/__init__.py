"""Read and write files safely: bounded reads of untrusted files, and writes that survive a crash.

`safe_reading` is for files that another program or user may have created, `safe_writing` for
files that must be complete after a kill, a power failure or a full disk. Neither knows what a
file means.
"""
