"""Reports of a sweep: terminal, Markdown, JSON and HTML."""
