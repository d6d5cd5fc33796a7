"""`torchyard build list|show|recipes|lock|sbom|wheels|explain`: read recipes, records and logs."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from torchyard.builds.commands.progress_display import time_text
from torchyard.cli.options import Count
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    print_message,
    printable,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.builds.record import BuildEntry, BuildRecord, ComponentRecord


_LIST_HELP = """
\b
Examples:
  torchyard build list
  torchyard build list --json

List the builds of this machine, unfinished ones included.
"""

_SHOW_HELP = """
\b
Examples:
  torchyard build show pytorch-2.6.0-trimmed
  torchyard build show ~/torchyard/builds/mine --json

Show the record of a build: sources, requested and effective options, toolchain, times and checks.
"""


@click.command("list", help=_LIST_HELP)
@common_options
def list_builds(as_json: bool) -> None:
    """List the builds of this machine."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.record import list_builds as read_builds

    entries = read_builds(BuildsDirectory.default())
    for entry in entries:
        if entry.problem:
            print_message(f"{entry.name}: {entry.problem}")
    if as_json:
        print_json({"builds": [_json_row(entry) for entry in entries]})
        return
    print_data(printable("\n".join(_build_row(entry) for entry in entries) or "no builds yet"))


def _build_row(entry: BuildEntry) -> str:
    record = entry.record
    if record is None:
        return f"{entry.name:<34} {'damaged' if entry.problem else 'not finished'}"
    parts = ", ".join(f"{part.name} {part.version}".strip() for part in record.components)
    return f"{entry.name:<34} {record.finished:<26} {parts}"


def _json_row(entry: BuildEntry) -> dict[str, Any]:
    record = entry.record
    return {
        "name": entry.name,
        "folder": str(entry.folder),
        "finished": record.finished if record else "",
        "python": record.python if record else "",
        "trouble": entry.problem,
    }


@click.command("show", help=_SHOW_HELP)
@click.argument("build")
@common_options
def show(build: str, as_json: bool) -> None:
    """Show the record of a build."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.record import find_build
    from torchyard.core.records import encode

    record = find_build(build, BuildsDirectory.default()).record
    assert record is not None  # noqa: S101  # find_build returns finished builds only
    if as_json:
        print_json({"record": encode(record)})
    else:
        print_data(printable(record_text(record)))


def record_text(record: BuildRecord) -> str:
    """Format a record as text."""
    total_s = sum(times.wall_s for times in record.times)
    lines = [
        f"{record.name}, finished {record.finished or 'at an unknown time'}, {time_text(total_s)}",
        f"  interpreter  {record.python or 'none'}",
        (
            f"  machine      {record.machine.get('cpu', 'unknown')}, "
            f"{record.machine.get('cores', '?')} cores, {record.machine.get('memory', '?')}"
        ),
    ]
    for part in record.components:
        lines += _component_lines(part)
    lines.append("  steps")
    for times in record.times:
        text = f"    {times.step:<30} {time_text(times.wall_s):>12}"
        if times.compiles:
            text += f"  {times.compiles} compiles, {times.cpu_s or 0:.0f} s CPU"
            text += f", peak {times.peak_memory_mib or 0:.0f} MiB"
        lines.append(text)
    return "\n".join(lines)


def _component_lines(part: ComponentRecord) -> list[str]:
    lines = [f"  {part.name} {part.version} {part.variant}".rstrip()]
    if part.source is not None:
        mark = part.source.commit or part.source.version or part.source.sha256[:16]
        lines.append(f"    source     {part.source.kind} {part.source.origin} {mark}".rstrip())
    if part.edited:
        lines.append("    edited     the working copy was edited and rebuilt")
    tools = ", ".join(f"{tool.name} {tool.version}" for tool in part.toolchain)
    lines.append(f"    tools      {tools or 'unknown'}")
    lines += [f"    wheel      {wheel.file}" for wheel in part.wheels]
    if part.verified is not None:
        counts: dict[str, int] = {}
        for option in part.verified.options:
            counts[option.verdict] = counts.get(option.verdict, 0) + 1
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        lines.append(f"    options    {verdicts or 'none requested'}")
        passed = sum(result.passed for result in part.verified.smoke)
        lines.append(f"    smoke      {passed} of {len(part.verified.smoke)} passed")
        lines += [
            f"    skipped    {result.name}: {result.skipped}"
            for result in part.verified.smoke
            if result.skipped
        ]
        lines += [f"    {finding.level:<10} {finding.what}" for finding in part.verified.findings]
    return lines


_RECIPES_HELP = """
\b
Examples:
  torchyard build recipes                 all shipped recipes
  torchyard build recipes pytorch         variants, sources and options of one
  torchyard build recipes ./mine.toml --variant fast --json

List the recipes, or show one with a variant applied.
"""


@click.command(help=_RECIPES_HELP)
@click.argument("recipe", required=False)
@click.option("--variant", default="", help="Variant to apply. [default: the recipe's own]")
@click.option(
    "--version", default="", help="Release to show it for. [default: the recipe's version]"
)
@common_options
def recipes(recipe: str | None, variant: str, version: str, as_json: bool) -> None:
    """List the recipes, or show one."""
    from torchyard.builds.recipe import SourceKind
    from torchyard.builds.recipe_file import load_recipe_file, read_recipe, shipped_recipes
    from torchyard.core.records import encode

    if recipe is None:
        rows = [
            (file.name, str(file.table.get("summary", "")), list(file.variants))
            for file in map(load_recipe_file, shipped_recipes())
        ]
        if as_json:
            keys = ("name", "summary", "variants")
            print_json({"recipes": [dict(zip(keys, row, strict=True)) for row in rows]})
        else:
            print_data("\n".join(_recipe_row(*row) for row in rows))
        return
    file = load_recipe_file(recipe)
    merged = read_recipe(file, variant=variant, version=version, machine=platform.machine())
    if as_json:
        print_json({"recipe": encode(merged), "variants": list(file.variants)})
        return
    lines = [f"{merged.name} {merged.version}", f"  {merged.summary}"]
    for name, table in file.table.get("variants", {}).items():
        lines.append(f"  variant {name:<14} {table.get('summary', '')}")
    kinds = [kind for kind in get_args(SourceKind) if getattr(merged.source, kind)]
    lines.append(f"  sources {', '.join(kinds) or 'none: set one with --set source...'}")
    lines.append(f"  environment {merged.environment.use}")
    lines += [f"  option {key} = {value}" for key, value in merged.options.items()]
    lines += [
        f"  component {part.recipe} {part.version} {part.variant}".rstrip()
        for part in merged.components
    ]
    print_data(printable("\n".join(lines)))


def _recipe_row(name: str, summary: str, variants: list[str]) -> str:
    text = f"{name:<20} {summary}"
    if variants:
        text += f"\n{'':<20} variants: {', '.join(variants)}"
    return printable(text)


_LOCK_HELP = """
\b
Examples:
  torchyard build lock pytorch-2.6.0-trimmed --output torch.lock.toml
  torchyard build pytorch --variant trimmed --version 2.6.0 --locked torch.lock.toml

Write a lock file with the exact sources and packages of a finished build, for `torchyard build --locked`.
"""

_SBOM_HELP = """
\b
Examples:
  torchyard build sbom pytorch-2.6.0-trimmed > torch.cdx.json
  torchyard build sbom pytorch-2.6.0-trimmed --format spdx --output torch.spdx.json

Write the software bill of materials (SBOM) of a build: sources, wheels, tools and packages.
Requires `pip install torchyard[sbom]`.
"""


@click.command("lock", help=_LOCK_HELP)
@click.argument("build")
@click.option("--output", default="", metavar="FILE", help="Lock file. [default: BUILD.lock.toml]")
@common_options
def lock(build: str, output: str, as_json: bool) -> None:
    """Write the lock file of a build."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.lockfile import make_lock, write_lock
    from torchyard.builds.recipe_file import resolve
    from torchyard.builds.record import find_build
    from torchyard.builds.running.existing_build import read_request
    from torchyard.core.records import encode

    home = BuildsDirectory.default()
    entry = find_build(build, home)
    assert entry.record is not None  # noqa: S101  # find_build returns finished builds only
    lock_content = make_lock(entry.record, resolve(read_request(entry.name, home)))
    path = Path(output or f"{entry.name}.lock.toml")
    check_writable(path, option="--output")
    write_lock(path, lock_content)
    if as_json:
        print_json({"file": str(path), "lock": encode(lock_content)})
    else:
        print_message(f"wrote {path}")


@click.command("sbom", help=_SBOM_HELP)
@click.argument("build")
@click.option(
    "--format",
    "sbom_format",
    type=click.Choice(["cyclonedx", "spdx"]),
    default="cyclonedx",
    show_default=True,
    help="SBOM standard; both are written as JSON.",
)
@click.option("--output", default="", metavar="FILE", help="Output file. [default: stdout]")
@common_options
def sbom(build: str, sbom_format: str, output: str, as_json: bool) -> None:
    """Write the software bill of materials of a build."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.record import find_build
    from torchyard.builds.sbom import sbom_text

    record = find_build(build, BuildsDirectory.default()).record
    assert record is not None  # noqa: S101  # find_build returns finished builds only
    text = sbom_text(record, sbom_format)
    if output:
        write_file(Path(output), text, option="--output")
        if as_json:
            print_json({"file": output, "format": sbom_format})
        else:
            print_message(f"wrote {output}")
    else:
        print_data(text)


_WHEELS_HELP = """
\b
Examples:
  torchyard build wheels pytorch-2.6.0-trimmed
  torchyard build wheels stack --output dist --platform manylinux_2_36_x86_64

Copy the wheels of a build for other machines, with the libraries that they need except those of torch
and of the GPU driver. The platform tag names the oldest C library that they run with. Requires
`pip install torchyard[wheels]`.
"""


@click.command("wheels", help=_WHEELS_HELP)
@click.argument("build")
@click.option(
    "--output", default="", metavar="FOLDER", help="Output folder. [default: BUILD-wheels]"
)
@click.option(
    "--platform",
    default="auto",
    show_default=True,
    metavar="TAG",
    help="Platform tag: manylinux_2_36_x86_64; `auto`: the oldest that fits.",
)
@click.option(
    "--exclude",
    "excluded",
    multiple=True,
    metavar="PATTERN",
    help="Library that is not copied: libcublas.so.*. May be repeated.",
)
@common_options
def wheels(
    build: str, output: str, platform: str, excluded: tuple[str, ...], as_json: bool
) -> None:
    """Copy the wheels of a build with the libraries that they need."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.portable_wheels import make_portable
    from torchyard.builds.record import find_build
    from torchyard.core.records import encode

    entry = find_build(build, BuildsDirectory.default())
    folder = Path(output or f"{entry.name}-wheels")
    made = make_portable(entry, folder, platform=platform, excluded=excluded, say=print_message)
    if as_json:
        print_json({"wheels": [encode(wheel) for wheel in made]})
        return
    for wheel in made:
        libraries = ", ".join(wheel.libraries) or "no libraries"
        print_data(printable(f"{wheel.file}\n  {wheel.platform}: {libraries}"))


_EXPLAIN_HELP = """
\b
Examples:
  torchyard build explain build.log
  pip install . 2>&1 | torchyard build explain -
  torchyard build explain build.log --json

Print the cause of a failed build and a suggested fix, from any log; for an unknown failure, the first
error and the command that failed. The exit code is 0 also for a log without a failure; --json has the
field `failed`.
"""


@click.command("explain", help=_EXPLAIN_HELP)
@click.argument("log", metavar="LOG|-")
@click.option(
    "--exit-code", type=Count(-64, 255), default=None, help="Exit code of the build, if known."
)
@common_options
def explain(log: str, exit_code: int | None, as_json: bool) -> None:
    """Explain why a build failed."""
    from torchyard.builds.diagnosis.diagnose import diagnose
    from torchyard.builds.diagnosis.model import describe
    from torchyard.core.records import encode

    diagnosis = diagnose(sys.stdin.buffer if log == "-" else Path(log), exit_code=exit_code)
    if as_json:
        print_json({"diagnosis": encode(diagnosis)})
    else:
        print_data(printable(describe(diagnosis)))
