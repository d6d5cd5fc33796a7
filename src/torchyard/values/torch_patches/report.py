"""Patches of torch as text for the terminal, and as the text of a report to its developers."""

from __future__ import annotations

from typing import Final

from torchyard.core.units import format_bytes
from torchyard.presentation.safe_text import wrapped
from torchyard.values.torch_patches.model import CaseComparison, TorchFixReport, TorchPatch

_INDENT: Final = "    "
_WIDTH: Final = 100
_NAMED: Final = 3


def torch_fix_text(report: TorchFixReport, *, folder: str) -> str:
    """Return the patches with their evidence, then the findings without a patch and the reasons."""
    proposed = report.proposed
    others = [one for one in report.patches if one not in proposed]
    count = "1 patch" if len(proposed) == 1 else f"{len(proposed)} patches"
    lines = [f"{count} of torch {report.torch}, {_state(report)}."]
    for number, patch in enumerate(report.patches, start=1):
        if patch not in proposed:
            continue
        lines += ["", *_entry(number, patch, patch.text), *patch.diff.splitlines()]
        for text in evidence(patch) if report.built else ():
            lines += wrapped(text, _WIDTH, first=_INDENT, rest=_INDENT + "  ")
    if report.built:
        lines += ["", *wrapped(report.method, _WIDTH)]
    if others:
        lines += ["", "Not proposed:"]
        for number, patch in enumerate(report.patches, start=1):
            if patch in others:
                lines += _entry(number, patch, patch.why_not or "not verified")
    lines.append("")
    if report.interrupted:
        lines.append("Interrupted: patches without evidence were not checked.")
    if proposed and not report.built:
        lines.append("The patches are not checked: --rebuild builds and compares the library.")
    if proposed:
        lines.append(f"Patches for `git apply`: {folder}/patches")
    if report.python:
        lines.append(f"Interpreter with the patched library: {report.python}")
    return "\n".join(lines).rstrip() + "\n"


def _state(report: TorchFixReport) -> str:
    if not report.built:
        return "not built"
    without = sum(1 for one in report.proposed if not one.tests.passed)
    if without == 0:
        return "verified"
    some = "" if without == len(report.proposed) else f", {without} of them"
    return f"verified{some} without torch's tests"


def evidence(patch: TorchPatch) -> list[str]:
    """Return what is known about a patch, one sentence each."""
    samples, tests = patch.samples, patch.tests
    operators = _names(samples.operators)
    lines = [
        f"results: {samples.compared} samples of {operators} equal bit for bit, with NaN in new memory"
    ]
    if samples.why:
        lines.append(f"samples: {samples.why}")
    if tests.passed or tests.failed_before or tests.broken:
        lines.append(
            f"torch's tests ({tests.selected}): {tests.passed} pass before and after, "
            f"{tests.skipped} skipped, {tests.failed_before} failed before, "
            f"{len(tests.broken)} fail now"
        )
    else:
        lines.append(f"torch's tests: not run ({tests.why or 'none selected'})")
    if patch.swept:
        remains = f"remains in {_names(patch.remaining)}" if patch.remaining else "is gone"
        lines.append(
            f"sweep of the patched library: the finding {remains}; "
            f"{format_bytes(patch.bytes_saved)} less written in one call"
        )
    lines += [f"speed of {one.case}: {speed_text(one)}" for one in patch.comparisons]
    return lines


def speed_text(comparison: CaseComparison) -> str:
    """Return verdict, speedup and interval, and why there is no verdict."""
    text = comparison.verdict or "no verdict"
    if comparison.speedup is not None:
        text += f", {comparison.speedup:.3f}x"
    if comparison.interval is not None:
        text += f" [{comparison.interval.low:.3f}, {comparison.interval.high:.3f}]"
    return text + (f" ({comparison.why})" if comparison.why else "")


def _entry(number: int, patch: TorchPatch, text: str) -> list[str]:
    place = f"{patch.file}:{patch.line}" if patch.file else f"{patch.operator} > {patch.call}"
    cases = _names(tuple(f"{one.case} {one.direction}" for one in patch.found_in))
    return wrapped(f"{place}: {text} ({cases})", _WIDTH, first=f"{number:>3} ", rest=_INDENT + "  ")


def _names(names: tuple[str, ...]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _NAMED} more" if len(unique) > _NAMED else ""
    return ", ".join(unique[:_NAMED]) + more


def upstream_text(report: TorchFixReport, patch: TorchPatch) -> str:
    """Return the text of a report to the developers of torch, in Markdown."""
    cases = ", ".join(f"`{one.case}` ({one.direction})" for one in patch.found_in)
    place = f"`{patch.function}` (`{patch.file}`, line {patch.line})"
    summary = f"In torch {report.torch}, {place} fills memory that is overwritten before it is read"
    lines = [
        f"# `{patch.operator}` writes {format_bytes(patch.bytes_saved)} that nobody reads",
        "",
        f"{summary}: {patch.text}. Found in: {cases}.",
        "",
        "```diff",
        patch.diff.rstrip("\n"),
        "```",
        "",
        *(
            ["Evidence:", "", *(f"- {line}" for line in evidence(patch)), "", report.method]
            if report.built
            else ["The patch was neither built nor checked."]
        ),
    ]
    return "\n".join(lines) + "\n"


def series_text(report: TorchFixReport) -> str:
    """Return a Markdown table of all patches; each has a row for every case."""
    state = f" {report.method}" if report.built else " They were neither built nor checked."
    lines = [
        f"# Patches of torch {report.torch}",
        "",
        f"Memory that is filled and then overwritten, found by `torchyard values sweep`.{state}",
        "",
        "| patch | function | change | case | bytes | samples | tests | speed |",
        "|---|---|---|---|--:|--:|---|---|",
    ]
    for number, patch in enumerate(report.proposed, start=1):
        speeds = {one.case: one for one in patch.comparisons}
        tests = patch.tests
        account = f"{tests.passed} pass, {tests.failed_before} failed before"
        for origin in patch.found_in:
            cells = (
                f"{number:02}",
                f"`{patch.function}`",
                patch.text,
                f"{origin.case} {origin.direction}",
                format_bytes(origin.bytes_wasted),
                str(patch.samples.compared or ""),
                account if tests.passed or tests.failed_before else "none",
                speed_text(speeds[origin.case]) if origin.case in speeds else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    rejected = [one for one in report.patches if one.diff and one.why_not]
    if rejected:
        lines += ["", "Built and not proposed:", ""]
        lines += [f"- `{one.function}`, {one.text}: {one.why_not}" for one in rejected]
    return "\n".join(lines) + "\n"
