"""The tables of the index and their version. The index is a cache: another version is made anew.

runs          one row per folder in the home, readable or not
lines         what a history is of: workload, baseline, candidate and machine
builds        what a candidate was: version of torch and revision
comparisons   one row per comparison, lying in the order of histories
run_builds    which runs measured a build
looks         the digest of a look at all folders with which every row of runs was found to agree
"""

from __future__ import annotations

from typing import Final

from torchyard.core.comparison import Verdict

__all__ = ["APPLICATION", "CREATE", "TABLES", "VERDICTS", "VERSION"]

APPLICATION: Final = 0x544F5259
"""Marks the file as ours ("TORY" in ASCII): a database of something else is never touched."""

VERSION: Final = 3
"""Raised whenever tables, or what is put into them, change."""

VERDICTS: Final[tuple[Verdict, ...]] = tuple(Verdict)
"""The state of a comparison (`Comparison.state`) is kept as its place here."""

TABLES: Final = ("runs", "lines", "builds", "comparisons", "run_builds", "looks")

# No STRICT: distributions that are still supported have an SQLite from before it (3.37).
CREATE: Final = (
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        mark TEXT NOT NULL,
        rows_mark TEXT NOT NULL,
        settled INTEGER NOT NULL,
        moment INTEGER NOT NULL,
        study TEXT NOT NULL,
        state TEXT NOT NULL,
        started TEXT NOT NULL,
        finished TEXT,
        machine TEXT NOT NULL,
        machine_text TEXT NOT NULL,
        torch TEXT NOT NULL,
        revision TEXT NOT NULL,
        torchyard TEXT NOT NULL,
        verdicts TEXT NOT NULL,
        verdict_bits INTEGER NOT NULL,
        comparisons INTEGER NOT NULL,
        notes TEXT NOT NULL,
        damage TEXT NOT NULL
    )""",
    "CREATE INDEX runs_by_moment ON runs (moment, number)",
    "CREATE INDEX runs_unsettled ON runs (id) WHERE settled = 0",
    """CREATE TABLE lines (
        number INTEGER PRIMARY KEY,
        workload TEXT NOT NULL,
        baseline TEXT NOT NULL,
        candidate TEXT NOT NULL,
        machine TEXT NOT NULL,
        suite TEXT NOT NULL,
        mode TEXT NOT NULL,
        device TEXT NOT NULL,
        metric_bits INTEGER NOT NULL DEFAULT 0,
        UNIQUE (workload, baseline, candidate, machine, suite, mode, device)
    )""",
    """CREATE TABLE builds (
        number INTEGER PRIMARY KEY,
        revision TEXT NOT NULL,
        torch TEXT NOT NULL,
        UNIQUE (revision, torch)
    )""",
    # Without row numbers the table itself lies in this order: a history is one piece of the file.
    """CREATE TABLE comparisons (
        line INTEGER NOT NULL,
        moment INTEGER NOT NULL,
        run INTEGER NOT NULL,
        build INTEGER NOT NULL,
        verdict INTEGER NOT NULL,
        untrusted TEXT NOT NULL,
        launches INTEGER NOT NULL,
        speedup REAL,
        low REAL,
        high REAL,
        baseline_ns REAL,
        candidate_ns REAL,
        compile_s REAL,
        memory_bytes INTEGER,
        PRIMARY KEY (line, moment, run)
    ) WITHOUT ROWID""",
    "CREATE INDEX comparisons_by_run ON comparisons (moment, run, verdict)",
    """CREATE TABLE run_builds (
        build INTEGER NOT NULL,
        run INTEGER NOT NULL,
        PRIMARY KEY (build, run)
    ) WITHOUT ROWID""",
    "CREATE INDEX run_builds_by_run ON run_builds (run)",
    "CREATE TABLE looks (digest TEXT NOT NULL)",
)
