"""The kit that all reports share: HTML pages, charts, safe text, redaction and wording.

Imports no capability.
"""
