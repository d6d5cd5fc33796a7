"""A tool's profile as one HTML page, self-contained except for links to the files of the tool."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from torchyard.core.units import format_percent
from torchyard.presentation.html_page import asset, fingerprint, template_engine
from torchyard.profile.model import CostRow, ToolProfile
from torchyard.profile.report import (
    HOW_TO_OPEN,
    cost_text,
    counter_text,
    has_calls,
    has_device,
    has_memory,
    has_total,
    run_facts,
    share_of,
    size_text,
    state_sentence,
)

__all__ = ["profile_page"]


def profile_page(profile: ToolProfile, *, files_at: str = "") -> str:
    """Return the page. `files_at` is the folder of the tool's files, relative to the page."""
    style = asset("report.css") + asset("profile.css")
    rows = profile.rows
    return (
        template_engine()
        .get_template("profile.html.j2")
        .render(
            profile=profile,
            good=profile.state == "finished" and not profile.exit_code,
            sentence=state_sentence(profile),
            facts=run_facts(profile),
            rows=[_row(row, profile) for row in rows],
            left_out=profile.rows_left_out,
            shows={
                "calls": has_calls(rows),
                "processor": any(row.self_cost for row in rows) or not has_device(rows),
                "total": has_total(rows),
                "device": has_device(rows),
                "memory": has_memory(rows),
                "device_memory": any(row.device_memory_bytes for row in rows),
            },
            counters=[(one.name, counter_text(one)) for one in profile.counters],
            stacks=[
                (cost_text(one.cost, profile.unit), " › ".join(one.frames))
                for one in profile.stacks
            ],
            files=[
                {"name": file.name, "about": file.about, "link": _link(files_at, file.name)}
                for file in profile.files
            ],
            how_to_open=HOW_TO_OPEN
            if any(file.name.endswith(("trace.json.gz", ".pftrace")) for file in profile.files)
            else "",
            style=style,
            style_hash=fingerprint(style),
        )
    )


def _row(row: CostRow, profile: ToolProfile) -> dict[str, Any]:
    unit = profile.unit
    share = share_of(row, profile)
    most = max((share_of(one, profile) for one in profile.rows[:1]), default=0.0)
    return {
        "name": row.name,
        "where": row.where,
        "calls": "" if row.calls is None else f"{row.calls:,}",
        "self": cost_text(row.self_cost, unit),
        "total": cost_text(row.total_cost, unit),
        "device": cost_text(row.self_device_cost, unit),
        "share": format_percent(share),
        "bar": round(100 * share / most, 1) if most > 0 else 0,
        "memory": size_text(row.memory_bytes),
        "device_memory": size_text(row.device_memory_bytes),
        "shapes": [
            f"{one.shapes}: {one.calls:,} calls, {cost_text(one.self_cost, unit)}"
            for one in row.shapes
        ],
    }


def _link(folder: str, name: str) -> str:
    """Return a relative URL; a file name can never turn it into an absolute one."""
    path = PurePosixPath(folder) / name if folder else PurePosixPath(name)
    text = quote(str(path))
    return text if text.startswith(("/", ".")) else f"./{text}"
