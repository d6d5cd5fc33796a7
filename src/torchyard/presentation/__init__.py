"""Shared building blocks of reports: HTML pages, charts, safe text, redaction and wording.

Does not depend on any capability.
"""
