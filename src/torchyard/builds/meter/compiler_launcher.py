"""Put the compile meter and a compiler cache (ccache, sccache) in front of every compile.

The meter itself is `meter.c`; this module makes the actions that compile it and the variables that
enable it. A cache is tried on a real compile before it is used, so that a broken cache means a cold
build and never a failed one; its hits are counted.
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

CacheName = Literal["ccache", "sccache"]
CacheRequest = Literal["auto", "ccache", "sccache", "none"]

_ORDER: Final[tuple[CacheName, ...]] = ("ccache", "sccache")
"""ccache first: it compiles in its own process, where the meter sees the memory; the compiles of
sccache are children of its server."""
_LIMIT_S: Final = 60.0
_PROBE_SOURCE: Final = "int torchyard_probe(int value) { return value + 1; }\n"


@dataclass(frozen=True, kw_only=True)
class CacheChoice:
    """A compiler cache that has been seen to work."""

    name: CacheName
    program: str
    """Absolute path, as seen by the build."""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CacheDecision:
    """The cache to use, or none, and the reason in words."""

    choice: CacheChoice | None
    why: str


@dataclass(frozen=True, kw_only=True)
class CacheCounts:
    """Hits and misses of a cache."""

    hits: int
    misses: int

    @property
    def rate(self) -> float | None:
        """Share of hits; None when nothing was looked up."""
        looked_up = self.hits + self.misses
        return self.hits / looked_up if looked_up else None


def choose_cache(
    requested: str,
    *,
    variables: Mapping[str, str],
    base_folder: Path | None = None,
    compiler: str = "cc",
    before: Sequence[str] = (),
) -> CacheDecision:
    """The cache to build with: the requested one, or the first that works.

    `variables` is the whole environment of the build. `before` is put before every command: what
    enters the build's root folder, whose programs and network are not this machine's.
    """
    if requested not in get_args(CacheRequest):
        raise UsageError(
            f"no compiler cache is called {requested!r}",
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
        trouble = _trouble(choice, variables, compiler, before)
        if not trouble:
            return CacheDecision(choice=choice, why=f"{program}: compiled a file through it, twice")
        failures.append(f"{cache} is not used: {trouble}")
    return CacheDecision(choice=None, why="; ".join(failures))


def read_counts(
    choice: CacheChoice, *, variables: Mapping[str, str], before: Sequence[str] = ()
) -> CacheCounts | None:
    """What the cache has counted so far; None when it does not say."""
    options: tuple[str, ...] = ("--print-stats",)
    if choice.name == "sccache":
        options = ("--show-stats", "--stats-format=json")
    result = _run(choice, variables, (*before, choice.program, *options))
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
    """What ccache wrote to CCACHE_STATSLOG; None where there is nothing, as of an old ccache.

    Only of its own caller, while the counters of a cache are those of everybody who shares it.
    """
    try:
        lines = Counter(log.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return None
    hits = lines["direct_cache_hit"] + lines["preprocessed_cache_hit"]
    counted = CacheCounts(hits=hits, misses=lines["cache_miss"])
    return counted if counted.rate is not None else None


def cache_statistics(before: CacheCounts | None, after: CacheCounts | None) -> CacheCounts | None:
    """Hits and misses between two countings; None when one is missing or the cache was reset."""
    if before is None or after is None:
        return None
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return CacheCounts(hits=hits, misses=misses) if hits >= 0 and misses >= 0 else None


def _cache_variables(
    name: CacheName, base_folder: Path | None, variables: Mapping[str, str]
) -> dict[str, str]:
    """Variables that let builds of other names share the cache.

    CCACHE_BASEDIR makes names below it relative, so that one source built in two folders hits.
    CCACHE_NOHASHDIR is left alone: with -g the working folder is part of the object, and a hit from
    another build would send debuggers and profilers to that build's sources. The cache's own
    folder and size, and a base folder that is set, stay as the user has them.
    """
    if name == "ccache" and base_folder is not None and "CCACHE_BASEDIR" not in variables:
        return {"CCACHE_BASEDIR": str(base_folder)}
    return {}


def _find(name: CacheName, variables: Mapping[str, str], before: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            (*before, "/bin/sh", "-c", f"command -v {name}"),
            env=dict(variables),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = result.stdout.strip()
    return found if result.returncode == 0 and found.startswith("/") else ""


def _trouble(
    choice: CacheChoice, variables: Mapping[str, str], compiler: str, before: Sequence[str]
) -> str:
    """Why the cache cannot be used; empty when it can."""
    with tempfile.TemporaryDirectory(prefix="torchyard-cache-") as name:
        source, output = Path(name) / "probe.c", Path(name) / "probe.o"
        source.write_text(_PROBE_SOURCE, encoding="ascii")
        plain = (*before, compiler, "-c", str(source), "-o", str(output))
        result = _run(choice, variables, plain)
        if result is None or result.returncode or not output.is_file():
            return f"{compiler} compiles nothing even without it: {_last_line(result)}"
        cached = (*before, choice.program, *plain[len(before) :])
        earlier = read_counts(choice, variables=variables, before=before)
        for _ in range(2):
            output.unlink(missing_ok=True)
            result = _run(choice, variables, cached)
            if result is None or result.returncode:
                return f"{shlex.join(cached)} failed: {_last_line(result)}"
            if not output.is_file() or not output.stat().st_size:
                return f"{shlex.join(cached)} made no object"
        counts = cache_statistics(earlier, read_counts(choice, variables=variables, before=before))
        if counts is not None and not counts.hits:
            return "the same file compiled twice was no hit the second time"
    return ""


def _run(
    choice: CacheChoice, variables: Mapping[str, str], argv: Sequence[str]
) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            argv,
            env={**variables, **choice.variables},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _last_line(result: subprocess.CompletedProcess[str] | None) -> str:
    if result is None:
        return "it could not be started, or took too long"
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    return lines[-1].strip()[:300] if lines else f"exit code {result.returncode}, and no message"


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
"""Memory is admitted in steps of this size: fine enough for small C files, few enough to lock."""

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_METER_FILES: Final = ("meter.c", "command_line.h", "make_meter.sh")
_MOST_UNITS: Final = (1 << 20) - 1
"""What meter.c accepts; 64 TiB."""
_LANGUAGES: Final = ("C", "CXX", "CUDA", "HIP", "Fortran")
_LINKED_LANGUAGES: Final = ("C", "CXX")


def meter_actions(folder: Path) -> tuple[Action, ...]:
    """Compile the meter in `folder`, in the step's own root, and link compiler names to it."""
    files = resources.files("torchyard.builds.meter")
    texts = (
        WriteFile(path=str(folder / name), text=(files / name).read_text(encoding="utf-8"))
        for name in _METER_FILES
    )
    script = str(folder / "make_meter.sh")
    return (*texts, Command(argv=("sh", script, str(folder)), folder=str(folder)))


def memory_units(memory_mib: int) -> int:
    """Whole units in that much memory; at least one."""
    return min(max(memory_mib // UNIT_MIB, 1), _MOST_UNITS)


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
    """Variables that put the meter (and a compiler cache behind it) before every compile.

    CMake takes launchers from the environment at the first configure. Projects that start the
    compiler themselves get a folder of links before `path`. With both, a compile is still metered
    once: the meter marks its children. Log and table are each step's own: see `step_variables`.
    """
    meter = str(folder / "meter")
    if ";" in meter or ":" in meter:
        raise UsageError(
            f"the build folder {folder} has a ';' or ':' in its name",
            why="CMake and PATH split names there",
            hint="choose another folder with TORCHYARD_HOME or --name",
        )
    variables = {
        "TORCHYARD_METER_LOCKS": str(folder / "locks"),
        "TORCHYARD_METER_JOBS": str(max(jobs, 1)),
        "TORCHYARD_METER_UNITS": str(memory_units(memory_mib)),
        "TORCHYARD_METER_UNIT_MIB": str(UNIT_MIB),
        "TORCHYARD_METER_DEFAULT_MIB": str(default_mib),
        **step_variables(log=folder / "compiles.log", table=folder / "table"),
    }
    if cache is not None:
        # The meter starts the cache, so that each run of a build chooses anew: CMake keeps the
        # launcher of the first configure for good, and a cache that is gone would end the build.
        variables.update(cache.variables)
        variables["TORCHYARD_METER_CACHE"] = cache.program
    if masquerade:
        variables["PATH"] = f"{folder / 'bin'}:{path or DEFAULT_PATH}"
        return variables
    variables.update({f"CMAKE_{name}_COMPILER_LAUNCHER": meter for name in _LANGUAGES})
    variables.update({f"CMAKE_{name}_LINKER_LAUNCHER": meter for name in _LINKED_LANGUAGES})
    return variables


def step_variables(*, log: Path, table: Path) -> dict[str, str]:
    """Where one step's compiles are logged, and the table of what its files need."""
    return {"TORCHYARD_METER_LOG": str(log), "TORCHYARD_METER_TABLE": str(table)}


def write_table(path: Path, needs_mib: Mapping[str, int]) -> None:
    """Write what files need, in MiB, by basename or glob; the first glob that matches counts.

    `kind:link` and `kind:compile` stand for all links and compiles that nothing else matches.
    """
    lines = (
        f"{name}\t{mib}\n"
        for name, mib in needs_mib.items()
        # The meter reads lines of names and tabs; such a file falls back to the default.
        if name and not set(name) & set("\t\n\r\0") and not name.startswith("#")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(lines))
