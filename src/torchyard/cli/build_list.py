"""`torchyard build list` and `show`: the builds of this machine and their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.build_progress import time_text
from torchyard.cli.output import common_options, print_data, print_json, printable, talk

if TYPE_CHECKING:
    from torchyard.build.record import BuildEntry
    from torchyard.core.build_record import BuildRecord, ComponentRecord

__all__ = ["list_builds", "show"]

_LIST_HELP = """
\b
Examples:
  torchyard build list
  torchyard build list --json

List the finished builds of this machine.
"""

_SHOW_HELP = """
\b
Examples:
  torchyard build show pytorch-2.6.0-trimmed
  torchyard build show ~/yard/builds/mine --json

Show the record of a build: sources, options requested and effective, toolchain, times, checks.
"""


@click.command("list", help=_LIST_HELP)
@common_options
def list_builds(as_json: bool) -> None:
    """List builds."""
    from torchyard.build.layout import YardHome
    from torchyard.build.record import list_builds as found_builds

    entries = found_builds(YardHome.default())
    for entry in entries:
        if entry.trouble:
            talk(f"{entry.name}: {entry.trouble}")
    if as_json:
        print_json({"builds": [_json_row(entry) for entry in entries]})
        return
    print_data(printable("\n".join(_row(entry) for entry in entries) or "no builds yet"))


def _row(entry: BuildEntry) -> str:
    record = entry.record
    if record is None:
        return f"{entry.name:<34} {'damaged' if entry.trouble else 'not finished'}"
    parts = ", ".join(f"{part.name} {part.version}".strip() for part in record.components)
    return f"{entry.name:<34} {record.finished:<26} {parts}"


def _json_row(entry: BuildEntry) -> dict[str, Any]:
    record = entry.record
    return {
        "name": entry.name,
        "folder": str(entry.folder),
        "finished": record.finished if record else "",
        "python": record.python if record else "",
        "trouble": entry.trouble,
    }


@click.command("show", help=_SHOW_HELP)
@click.argument("build")
@common_options
def show(build: str, as_json: bool) -> None:
    """Show one record."""
    from torchyard.build.layout import YardHome
    from torchyard.build.record import find_build
    from torchyard.core.records import encode

    record = find_build(build, YardHome.default()).record
    assert record is not None  # noqa: S101  # find_build gives finished ones only
    if as_json:
        print_json({"record": encode(record)})
    else:
        print_data(printable(record_text(record)))


def record_text(record: BuildRecord) -> str:
    """A record for people."""
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
            text += f", at most {times.peak_memory_mib or 0:.0f} MiB"
        lines.append(text)
    return "\n".join(lines)


def _component_lines(part: ComponentRecord) -> list[str]:
    lines = [f"  {part.name} {part.version} {part.variant}".rstrip()]
    if part.source is not None:
        mark = part.source.commit or part.source.version or part.source.sha256[:16]
        lines.append(f"    source     {part.source.kind} {part.source.origin} {mark}".rstrip())
    if part.edited:
        lines.append("    edited     its working copy was edited and compiled again")
    tools = ", ".join(f"{tool.name} {tool.version}" for tool in part.toolchain)
    lines.append(f"    tools      {tools or 'unknown'}")
    lines += [f"    wheel      {wheel.file}" for wheel in part.wheels]
    if part.verified is not None:
        counts: dict[str, int] = {}
        for option in part.verified.options:
            counts[option.verdict] = counts.get(option.verdict, 0) + 1
        said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        lines.append(f"    options    {said or 'none requested'}")
        passed = sum(result.passed for result in part.verified.smoke)
        lines.append(f"    smoke      {passed} of {len(part.verified.smoke)} passed")
        lines += [f"    {finding.level:<10} {finding.what}" for finding in part.verified.findings]
    return lines
