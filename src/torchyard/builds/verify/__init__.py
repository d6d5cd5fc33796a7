"""Check what a build made: files, import, options, linked libraries, smoke tests, test files."""
