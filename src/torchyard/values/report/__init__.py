"""A value profile as terminal text, Markdown, JSON, DOT and one self-contained HTML page."""
