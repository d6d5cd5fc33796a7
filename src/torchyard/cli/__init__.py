"""Command-line entry point: lazy loading, errors to exit codes, output, shared options.

The commands themselves are in the package of their capability (`command.py`, `commands/`). Only
`cli` and those modules print or exit.
"""
