"""From a proven finding to a verified patch of the user's program: `torchyard values fix`.

`candidates.py` turns a finding into edits of the source or into the reason why there is none; `program_copy.py` and
`verification.py` run the program with the patch and compare results and time; `session.py` does both for a profile,
and applies what was verified.
"""
