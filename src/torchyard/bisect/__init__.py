"""`torchyard bisect`: find the revision, release or setting that changed a program.

Revisions and releases are measured interleaved with the good and the bad end of the range; a posterior
over all possible change points selects the next one and decides when to stop. Settings are searched by
delta debugging: which of their differences keep the difference of both ends.
"""
