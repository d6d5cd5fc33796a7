"""The dashboard over kept runs: a read-only web server, and the same pages as a static site.

`pages` renders, `live_store` reads the runs, `app` and `server` answer requests, `site` writes
files. Only `app`, `feeds` and `server` need the optional packages of the extra `dashboard`.
"""
