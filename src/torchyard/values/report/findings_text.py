"""A value profile as terminal text, Markdown and JSON, and its flow graph as DOT and JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.core.units import format_bytes, format_percent
from torchyard.presentation.safe_text import aligned, escaped, wrapped
from torchyard.presentation.tables import escaped_cells, finite, json_text, markdown_table
from torchyard.values.model import Certainty, FlowNode, ValueFinding, ValueProfile
from torchyard.values.prices import profiled_steps
from torchyard.values.report import descriptions
from torchyard.values.report.flow_graph import NodeWaste, waste_links, waste_of_nodes
from torchyard.values.report.process_texts import where_text

_TEXT_HEADINGS: Final = ("", "pattern", "calls/steps", "bytes/step", "time/step", "certainty")
_TEXT_RIGHT: Final = frozenset({0, 2, 3, 4})
_INDENT: Final = " " * 4
_NAME_WIDTH: Final = 12


def values_text(profile: ValueProfile, *, width: int = 100, most: int = 40) -> str:
    """Return the report with at most `most` findings."""
    lines = wrapped(descriptions.summary_sentence(profile), width)
    if descriptions.state_sentence(profile):
        lines += wrapped(descriptions.state_sentence(profile), width)
    findings = descriptions.ordered(profile)
    if findings:
        lines += ["", *_text_table(findings[:most], profile, width)]
    if len(findings) > most:
        more = f"{len(findings) - most:,} smaller findings are not shown"
        lines += ["", f"{more}: `torchyard values show --format json` lists all findings."]
    lines += ["", "Scope:"]
    for name, text in descriptions.scope_rows(profile):
        lines += wrapped(
            text, width, first=f"  {name:<{_NAME_WIDTH}} ", rest=" " * (_NAME_WIDTH + 3)
        )
    for note in descriptions.notes_of_profile(profile):
        lines += wrapped(
            note, width, first=f"  {'note':<{_NAME_WIDTH}} ", rest=" " * (_NAME_WIDTH + 3)
        )
    return "\n".join(lines) + "\n"


def _text_table(findings: Sequence[ValueFinding], profile: ValueProfile, width: int) -> list[str]:
    rows = [_TEXT_HEADINGS]
    for number, finding in enumerate(findings, start=1):
        rows.append(
            (
                str(number),
                descriptions.clipped(finding.pattern, 40),
                descriptions.calls_text(finding),
                descriptions.bytes_text(finding, profile),
                descriptions.time_text(finding.worth),
                descriptions.certainty_text(finding),
            )
        )
    heading, *table = aligned(rows, right=_TEXT_RIGHT).split("\n")
    lines = [heading]
    for finding, row in zip(findings, table, strict=True):
        lines.append(row)
        for text in _text_sentences(finding, profile):
            lines += wrapped(text, width, first=_INDENT, rest=_INDENT + "  ")
    return lines


def _text_sentences(finding: ValueFinding, profile: ValueProfile) -> list[str]:
    """Return the lines below a finding: location, processes, detail, certainty, saving, suggestion."""
    why = descriptions.clipped(finding.proof.why, 500)
    suggestion = descriptions.suggestion_text(finding)
    sentences = (
        f"{descriptions.operator_text(finding.operator, finding.path)} at {descriptions.place_text(finding.place)}",
        where_text(finding, profile),
        descriptions.detail_text(finding),
        f"{finding.proof.certainty.value}: {why}" if why else "",
        *_worth_sentences(finding),
        f"→ {suggestion}" if suggestion else "",
    )
    return [sentence for sentence in sentences if sentence]


def _worth_sentences(finding: ValueFinding) -> list[str]:
    worth = finding.worth
    return [
        text
        for text in (
            descriptions.chain_text(worth),
            descriptions.measured_text(worth),
            descriptions.fix_speedup_text(worth),
        )
        if text
    ]


_MARKDOWN_HEADINGS: Final = ("#", "pattern", "operator", "location", *_TEXT_HEADINGS[2:])
_MARKDOWN_RIGHT: Final = (0, 4, 5, 6)


def values_markdown(profile: ValueProfile, *, most: int = 100) -> str:
    """Return a table of at most `most` findings, followed by their suggestions."""
    lines = [f"## Value profile of {escaped(descriptions.title_of_program(profile))}", ""]
    if descriptions.state_sentence(profile):
        lines += [f"**{escaped(descriptions.state_sentence(profile))}**", ""]
    lines += [escaped(descriptions.summary_sentence(profile)), ""]
    findings = descriptions.ordered(profile)
    if findings:
        lines += [*_markdown_table(findings[:most], profile), ""]
        for number, finding in enumerate(findings[:most], start=1):
            lines += [f"{number}. {' '.join(_markdown_sentences(finding, profile))}"]
        lines.append("")
    if len(findings) > most:
        lines += [f"{len(findings) - most:,} smaller findings are not shown.", ""]
    lines += ["<details><summary>Scope</summary>", ""]
    lines += [f"- {name}: {escaped(text)}" for name, text in descriptions.scope_rows(profile)]
    lines += [f"- note: {escaped(note)}" for note in descriptions.notes_of_profile(profile)]
    return "\n".join([*lines, "", "</details>"]) + "\n"


def _markdown_table(findings: list[ValueFinding], profile: ValueProfile) -> list[str]:
    rows = [
        (
            str(number),
            descriptions.clipped(finding.pattern),
            descriptions.operator_text(finding.operator, finding.path),
            descriptions.clipped(descriptions.place_text(finding.place)),
            descriptions.calls_text(finding),
            descriptions.bytes_text(finding, profile),
            descriptions.time_text(finding.worth),
            descriptions.certainty_text(finding),
        )
        for number, finding in enumerate(findings, start=1)
    ]
    return markdown_table(_MARKDOWN_HEADINGS, escaped_cells(rows), right=_MARKDOWN_RIGHT)


def _markdown_sentences(finding: ValueFinding, profile: ValueProfile) -> Iterator[str]:
    yield f"{escaped(descriptions.detail_text(finding) or descriptions.clipped(finding.pattern))}."
    if where := where_text(finding, profile):
        yield f"{escaped(where[0].upper() + where[1:])}."
    if finding.proof.why:
        why = descriptions.clipped(finding.proof.why, 500)
        yield f"{finding.proof.certainty.value.capitalize()}: {escaped(why)}."
    for text in _worth_sentences(finding):
        yield f"{escaped(text[0].upper() + text[1:])}."
    if descriptions.suggestion_text(finding):
        parts = descriptions.code_spans(descriptions.suggestion_text(finding))
        yield "**Suggestion:** " + "".join(
            f"`{part}`" if code else _kept_spaces(part) for code, part in parts
        )


def _kept_spaces(text: str) -> str:
    """Escape a text but keep the spaces at its ends, which separate it from code spans."""
    before, after = text[:1] == " ", text[1:] and text[-1:] == " "
    return f"{' ' if before else ''}{escaped(text)}{' ' if after else ''}"


SCHEMA: Final = "torchyard.value-profile"
SCHEMA_VERSION: Final = 1
"""Incremented if a key changes its meaning or is removed; not for new keys."""


def values_json(profile: ValueProfile) -> str:
    """Return the findings as JSON; non-finite numbers become null."""
    counts = Counter(finding.proof.certainty for finding in profile.findings)
    saving = profile.saving
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "program": list(profile.program),
        "state": profile.state,
        "exit_code": profile.exit_code,
        "torch": profile.torch,
        "device": profile.device,
        "threads": profile.threads,
        "summary": {
            "findings": len(profile.findings),
            "findings_left_out": profile.findings_left_out,
            "certainty": {word.value: counts[word] for word in Certainty},
            "bytes_wasted_per_step": sum(
                descriptions.bytes_per_step(finding, profile) for finding in profile.findings
            ),
            "saving": None if saving is None else encode(saving),
            "upper_bound_share": None if saving is None else saving.bound_share,
            "upper_bound_ns": None if saving is None else saving.bound_ns,
        },
        "looked_at": {
            "steps": profiled_steps(profile),
            "step_ns": profile.step_ns,
            "seconds": profile.seconds,
            "counts": profile.counts,
            "options": profile.options,
            "flow_nodes": len(profile.flow.nodes),
            "flow_edges": len(profile.flow.edges),
            "notes": list(profile.notes),
        },
        "processes": encode(profile.processes),
        "findings": [_finding(finding, profile) for finding in descriptions.ordered(profile)],
    }
    return json_text(document)


def _finding(finding: ValueFinding, profile: ValueProfile) -> dict[str, Any]:
    """Encode a finding without its recipe, which only the worker uses."""
    data: dict[str, Any] = encode(finding)
    del data["recipe"]
    data["bytes_wasted_per_step"] = descriptions.bytes_per_step(finding, profile)
    data["suggestion"] = descriptions.suggestion_text(finding)
    return data


FLOW_SCHEMA: Final = "torchyard.value-flow"
FLOW_SCHEMA_VERSION: Final = 1
OUTSIDE: Final = -1
_SHADES: Final = ((0.99, "#b34700"), (0.66, "#d98242"), (0.33, "#efb98e"), (0.0, "#fae3d2"))
"""Minimum share of waste and its colour: one hue, light to dark, safe for colour blindness."""
_DARK_SHADE: Final = 0.99
_NO_WASTE: Final = NodeWaste(share=0.0, findings=())


def flow_dot(profile: ValueProfile) -> str:
    """Return the graph in DOT: nodes are coloured by waste, edge width shows bytes."""
    findings = descriptions.ordered(profile)
    waste = waste_of_nodes(profile, findings)
    lines = [
        "digraph values {",
        '  graph [rankdir=TB, fontname="sans-serif"];',
        '  node [shape=box, style="rounded,filled", fillcolor="#ffffff", fontname="sans-serif"];',
        '  edge [color="#5d646b"];',
    ]
    lines += [
        f"  {_name(node.id)} [{_attributes(node, waste.get(node.id, _NO_WASTE))}];"
        for node in profile.flow.nodes
    ]
    lines += _edges(profile, waste)
    for link in waste_links(profile, findings):
        label = _quoted(link.relation)
        style = f'style=dashed, color="#9c2348", constraint=false, label={label}'
        lines.append(f"  {_name(link.node)} -> {_name(link.other)} [{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def flow_json(profile: ValueProfile) -> str:
    """Return nodes, edges and links with their findings as JSON."""
    findings = descriptions.ordered(profile)
    waste = waste_of_nodes(profile, findings)
    document = {
        "schema": FLOW_SCHEMA,
        "schema_version": FLOW_SCHEMA_VERSION,
        "program": list(profile.program),
        "nodes": [
            {
                **encode(node),
                "waste_share": waste.get(node.id, _NO_WASTE).share,
                "findings": list(waste.get(node.id, _NO_WASTE).findings),
            }
            for node in profile.flow.nodes
        ],
        "edges": [
            {**encode(edge), "waste_share": waste.get(edge.writer, _NO_WASTE).share}
            for edge in profile.flow.edges
        ],
        "links": encode(waste_links(profile, findings)),
        "findings": [
            {
                "number": number,
                "pattern": finding.pattern,
                "certainty": finding.proof.certainty.value,
            }
            for number, finding in enumerate(findings)
        ],
    }
    return json.dumps(finite(document), indent=1, allow_nan=False) + "\n"


def _edges(profile: ValueProfile, waste: Mapping[int, NodeWaste]) -> Iterator[str]:
    readers = {node.id for node in profile.flow.nodes}
    writers = readers | {OUTSIDE}
    edges = [one for one in profile.flow.edges if one.reader in readers and one.writer in writers]
    if any(edge.writer == OUTSIDE for edge in edges):
        attributes = 'label="external memory", shape=ellipse, fillcolor="#e9eef3"'
        yield f"  {_name(OUTSIDE)} [{attributes}];"
    for edge in edges:
        wasted = waste.get(edge.writer, _NO_WASTE).share > 0
        colour = ', color="#b34700"' if wasted else ""
        tip = _quoted(f"{format_bytes(edge.bytes)} in {edge.count:,} reads")
        attributes = f"penwidth={_width(edge.bytes):.1f}, tooltip={tip}{colour}"
        yield f"  {_name(edge.writer)} -> {_name(edge.reader)} [{attributes}];"


def _name(node: int) -> str:
    return f'"n{node}"'


def _attributes(node: FlowNode, waste: NodeWaste) -> str:
    label = [
        descriptions.operator_text(node.operator),
        descriptions.place_text(node.place),
        format_bytes(node.written_bytes),
    ]
    if waste.findings:
        label[-1] += f", {format_percent(waste.share)} wasted"
    parts = [f"label={_quoted(*label)}"]
    tip = f"{descriptions.operator_text(node.operator, node.path)}: {node.calls:,} calls"
    parts.append(f"tooltip={_quoted(tip)}")
    if waste.findings:
        shade = next(colour for least, colour in _SHADES if waste.share >= least)
        parts.append(f'fillcolor="{shade}"')
        parts += ['fontcolor="#ffffff"'] if waste.share >= _DARK_SHADE else []
        parts.append("penwidth=2")
    return ", ".join(parts)


def _quoted(*lines: str) -> str:
    """Return a DOT string; backslashes are doubled, because labels interpret them."""
    return '"' + "\\n".join(_escaped(lines)) + '"'


def _escaped(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        yield descriptions.clipped(line, 400).replace("\\", "\\\\").replace('"', '\\"')


def _width(size_bytes: int) -> float:
    """Return the line width: 1 for kilobytes, 5 for gigabytes."""
    return min(6.0, max(0.5, math.log2(max(1, size_bytes)) / 5 - 1))
