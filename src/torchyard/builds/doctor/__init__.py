"""The doctor: predict before anything compiles whether a build can work, and suggest fixes.

`examination` runs all checks; each check is a `Check` in one of the sibling modules.
"""
