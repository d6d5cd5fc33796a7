"""`torchyard bisect`: find the revision that changed the time of a program.

Revisions are measured interleaved with the good and the bad end of the range. A posterior over all
possible change points selects the next revision and decides when to stop.
"""
