"""The doctor: check before compiling whether a build can succeed, and suggest fixes.

`examination` runs all checks; each check is a `Check` in one of the sibling modules.
"""
