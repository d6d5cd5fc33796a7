"""Put the compile meter and a compiler cache (ccache, sccache) in front of every compile.

The meter itself is `meter.c`; this module provides the actions that compile it and the variables
that enable it. A cache is tested with a real compile before it is used, so that a broken cache makes a
build slower but never fails it; its hits are counted.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args

from torchyard.builds.plan import Action, Command, WriteFile
from torchyard.errors import UsageError
from torchyard.files.safe_writing import replace_file
from torchyard.process.programs import capture

CacheName = Literal["ccache", "sccache"]
CacheRequest = Literal["auto", "ccache", "sccache", "none"]

_ORDER: Final[tuple[CacheName, ...]] = ("ccache", "sccache")
"""ccache first: it compiles in its own process, where the meter can measure the memory; compiles of
sccache are children of its server."""
_LIMIT_S: Final = 60.0
_PROBE_SOURCE: Final = "int torchyard_probe(int value) { return value + 1; }\n"


@dataclass(frozen=True, kw_only=True)
class CacheChoice:
    """A compiler cache that works."""

    name: CacheName
    program: str
    """Absolute path in the environment of the build."""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CacheDecision:
    """The cache to use, or None, and the reason."""

    choice: CacheChoice | None
    why: str


@dataclass(frozen=True, kw_only=True)
class CacheCounts:
    """Hits and misses of a cache."""

    hits: int
    misses: int

    @property
    def rate(self) -> float | None:
        """Hit rate; None if there were no lookups."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None


def choose_cache(
    requested: str,
    *,
    variables: Mapping[str, str],
    base_folder: Path | None = None,
    compiler: str = "cc",
    before: Sequence[str] = (),
) -> CacheDecision:
    """Return the requested cache, or the first that works.

    `variables` is the complete environment of the build. `before` is prepended to every command, to
    enter the root folder of the build.
    """
    if requested not in get_args(CacheRequest):
        raise UsageError(
            f"there is no compiler cache {requested!r}",
            hint=f"use one of {', '.join(get_args(CacheRequest))}",
        )
    if requested == "none":
        return CacheDecision(choice=None, why="no compiler cache, as requested")
    failures: list[str] = []
    for name in _ORDER if requested == "auto" else (requested,):
        cache: CacheName = "sccache" if name == "sccache" else "ccache"
        program = _find(cache, variables, before)
        if not program:
            failures.append(f"{cache} is not installed")
            continue
        choice = CacheChoice(
            name=cache, program=program, variables=_cache_variables(cache, base_folder, variables)
        )
        problem = _problem_with(choice, variables, compiler, before)
        if not problem:
            return CacheDecision(choice=choice, why=f"{program}: tested with two compiles")
        failures.append(f"{cache} is not used: {problem}")
    return CacheDecision(choice=None, why="; ".join(failures))


def read_counts(
    choice: CacheChoice, *, variables: Mapping[str, str], before: Sequence[str] = ()
) -> CacheCounts | None:
    """Return the counters of the cache; None if they cannot be read."""
    options: tuple[str, ...] = ("--print-stats",)
    if choice.name == "sccache":
        options = ("--show-stats", "--stats-format=json")
    result = _run({**variables, **choice.variables}, (*before, choice.program, *options))
    if result is None or result.returncode:
        return None
    try:
        return (
            _sccache_counts(result.stdout)
            if choice.name == "sccache"
            else _ccache_counts(result.stdout)
        )
    except (ValueError, KeyError, TypeError):
        return None


def logged_counts(log: Path) -> CacheCounts | None:
    """Return the counts in CCACHE_STATSLOG; None if it is empty, as with an old ccache.

    It covers one build, while the counters of a cache cover everyone who shares it.
    """
    try:
        lines = Counter(log.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return None
    hits = lines["direct_cache_hit"] + lines["preprocessed_cache_hit"]
    counts = CacheCounts(hits=hits, misses=lines["cache_miss"])
    return counts if counts.rate is not None else None


def cache_statistics(before: CacheCounts | None, after: CacheCounts | None) -> CacheCounts | None:
    """Return hits and misses between two readings; None if one is missing or the cache was reset."""
    if before is None or after is None:
        return None
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return CacheCounts(hits=hits, misses=misses) if hits >= 0 and misses >= 0 else None


def _cache_variables(
    name: CacheName, base_folder: Path | None, variables: Mapping[str, str]
) -> dict[str, str]:
    """Return variables that let several builds share the cache.

    CCACHE_BASEDIR makes paths below it relative, so that one source built in two folders hits.
    CCACHE_NOHASHDIR is not set: with -g the working folder is part of the object, and a hit from
    another build would direct debuggers and profilers to the sources of that build. Folder and size
    of the cache, and a base folder set by the user, are not changed.
    """
    if name == "ccache" and base_folder is not None and "CCACHE_BASEDIR" not in variables:
        return {"CCACHE_BASEDIR": str(base_folder)}
    return {}


def _find(name: CacheName, variables: Mapping[str, str], before: Sequence[str]) -> str:
    result = _run(variables, (*before, "/bin/sh", "-c", f"command -v {name}"))
    path = result.stdout.strip() if result is not None and result.returncode == 0 else ""
    return path if path.startswith("/") else ""


def _problem_with(
    choice: CacheChoice, variables: Mapping[str, str], compiler: str, before: Sequence[str]
) -> str:
    """Return why the cache cannot be used; empty if it can."""
    full = {**variables, **choice.variables}
    with tempfile.TemporaryDirectory(prefix="torchyard-cache-") as name:
        source, output = Path(name) / "probe.c", Path(name) / "probe.o"
        source.write_text(_PROBE_SOURCE, encoding="ascii")
        plain = (*before, compiler, "-c", str(source), "-o", str(output))
        result = _run(full, plain)
        if result is None or result.returncode or not output.is_file():
            return f"{compiler} fails even without it: {_last_line(result)}"
        cached = (*before, choice.program, *plain[len(before) :])
        earlier = read_counts(choice, variables=variables, before=before)
        for _ in range(2):
            output.unlink(missing_ok=True)
            result = _run(full, cached)
            if result is None or result.returncode:
                return f"{shlex.join(cached)} failed: {_last_line(result)}"
            if not output.is_file() or not output.stat().st_size:
                return f"{shlex.join(cached)} created no object file"
        counts = cache_statistics(earlier, read_counts(choice, variables=variables, before=before))
        if counts is not None and not counts.hits:
            return "compiling the same file twice gave no cache hit"
    return ""


def _run(
    variables: Mapping[str, str], argv: Sequence[str]
) -> subprocess.CompletedProcess[str] | None:
    try:
        return capture(argv, variables=variables, limit_s=_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return None


def _last_line(result: subprocess.CompletedProcess[str] | None) -> str:
    if result is None:
        return "it could not be started, or timed out"
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    return lines[-1].strip()[:300] if lines else f"exit code {result.returncode} without a message"


def _ccache_counts(text: str) -> CacheCounts:
    counts = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    hits = int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"])
    return CacheCounts(hits=hits, misses=int(counts["cache_miss"]))


def _sccache_counts(text: str) -> CacheCounts:
    stats: dict[str, Any] = json.loads(text)["stats"]
    return CacheCounts(
        hits=sum(int(count) for count in stats["cache_hits"]["counts"].values()),
        misses=sum(int(count) for count in stats["cache_misses"]["counts"].values()),
    )


UNIT_MIB: Final = 64
"""Granularity of memory scheduling: fine enough for small C files, coarse enough for locking."""

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_METER_FILES: Final = ("meter.c", "command_line.h", "make_meter.sh")
_MAX_UNITS: Final = (1 << 20) - 1
"""Maximum of meter.c; 64 TiB."""
_LANGUAGES: Final = ("C", "CXX", "CUDA", "HIP", "Fortran")
_LINKED_LANGUAGES: Final = ("C", "CXX")


def meter_actions(folder: Path) -> tuple[Action, ...]:
    """Return actions that compile the meter in `folder` and link compiler names to it."""
    files = resources.files("torchyard.builds.meter")
    texts = (
        WriteFile(path=str(folder / name), text=(files / name).read_text(encoding="utf-8"))
        for name in _METER_FILES
    )
    script = str(folder / "make_meter.sh")
    return (*texts, Command(argv=("sh", script, str(folder)), folder=str(folder)))


def memory_units(memory_mib: int) -> int:
    """Return the number of whole units in an amount of memory, at least one."""
    return min(max(memory_mib // UNIT_MIB, 1), _MAX_UNITS)


def meter_variables(
    folder: Path,
    *,
    jobs: int,
    memory_mib: int,
    masquerade: bool,
    cache: CacheChoice | None,
    default_mib: int = 1024,
    path: str = DEFAULT_PATH,
) -> dict[str, str]:
    """Return variables that run the meter (and a compiler cache) before every compile.

    CMake reads launchers from the environment at the first configure. For projects that start the
    compiler themselves, a folder of links precedes `path`. With both, a compile is still measured
    once: the meter marks its children. Log and table are separate per step: see `step_variables`.
    """
    meter = str(folder / "meter")
    variables = {
        "TORCHYARD_METER_LOCKS": str(folder / "locks"),
        "TORCHYARD_METER_JOBS": str(max(jobs, 1)),
        "TORCHYARD_METER_UNITS": str(memory_units(memory_mib)),
        "TORCHYARD_METER_UNIT_MIB": str(UNIT_MIB),
        "TORCHYARD_METER_DEFAULT_MIB": str(default_mib),
        **step_variables(log=folder / "compiles.log", table=folder / "table"),
    }
    if cache is not None:
        # The meter starts the cache, so that each run of a build can choose another one: CMake keeps
        # the launcher of the first configure, and a removed cache would fail the build.
        variables.update(cache.variables)
        variables["TORCHYARD_METER_CACHE"] = cache.program
    if masquerade:
        variables["PATH"] = f"{folder / 'bin'}:{path or DEFAULT_PATH}"
        return variables
    variables.update({f"CMAKE_{name}_COMPILER_LAUNCHER": meter for name in _LANGUAGES})
    variables.update({f"CMAKE_{name}_LINKER_LAUNCHER": meter for name in _LINKED_LANGUAGES})
    return variables


def step_variables(*, log: Path, table: Path) -> dict[str, str]:
    """Return the variables with the compile log and the memory table of one step."""
    return {"TORCHYARD_METER_LOG": str(log), "TORCHYARD_METER_TABLE": str(table)}


def write_table(path: Path, needs_mib: Mapping[str, int]) -> None:
    """Write the memory of files in MiB, by base name or glob; the first matching glob is used.

    `kind:link` and `kind:compile` apply to all links and compiles without another match.
    """
    lines = (
        f"{name}\t{mib}\n"
        for name, mib in needs_mib.items()
        # The table cannot represent such names; they get the default.
        if name and not set(name) & set("\t\n\r\0") and not name.startswith("#")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(lines))
