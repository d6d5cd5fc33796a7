"""Describe the processes of a profile: where a finding occurs, over which processes totals are, and who is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from torchyard.core.units import format_bytes
from torchyard.presentation.safe_text import one_line
from torchyard.values.model import FindingInProcess, ProfiledProcess, ValueFinding, ValueProfile

_WORDS: Final = {
    "main": ("main process", "main processes"),
    "rank": ("rank", "ranks"),
    "loader": ("DataLoader worker", "DataLoader workers"),
    "child": ("child process", "child processes"),
    "fork": ("forked process", "forked processes"),
}
_MISSING: Final = {
    "killed": "killed before the last result was written",
    "missing": "started, but left no result",
    "running": "still running when the profile was read",
}
_MOST_NAMED: Final = 4
_MOST_NAME: Final = 80


def process_name(process: ProfiledProcess) -> str:
    """`rank 1`, `DataLoader worker 0 of rank 1`, `child process Process-1`."""
    word = _WORDS[process.kind][0]
    if process.kind == "rank":
        return word if process.rank is None else f"{word} {process.rank}"
    number = process.worker if process.kind == "loader" else None
    name = one_line(process.name)[:_MOST_NAME] if process.kind == "child" else ""
    text = " ".join(part for part in (word, name, "" if number is None else str(number)) if part)
    of_rank = process.rank is not None and process.kind != "main"
    return f"{text} of rank {process.rank}" if of_rank else text


def where_text(finding: ValueFinding, profile: ValueProfile) -> str:
    """`in 2 of 2 DataLoader workers (16 calls, 1.00 MiB each)`; empty for a single process."""
    if not profile.processes or not finding.processes:
        return ""
    numbers = [share.process for share in finding.processes]
    groups = [_group(kind, numbers, profile.processes) for kind in _WORDS]
    only = "only in " if len(numbers) == 1 and _others(numbers, profile.processes) else "in "
    text = only + " and ".join(group for group in groups if group)
    text += f" ({_amounts(finding.processes, profile.processes)})"
    if finding.contradicted_by:
        named = _listed([profile.processes[one] for one in finding.contradicted_by])
        text += f"; not in {named}, which ran the same operator at this line"
    if finding.worth.saving is not None and len(numbers) > 1:
        text += f"; times are those of {_the(process_name(profile.processes[0]))}"
    return text


def _others(numbers: Sequence[int], processes: Sequence[ProfiledProcess]) -> bool:
    """Whether there are other processes of the same kind."""
    kind = processes[numbers[0]].kind
    return sum(process.kind == kind for process in processes) > 1


def _group(kind: str, numbers: Sequence[int], processes: Sequence[ProfiledProcess]) -> str:
    members = [processes[number] for number in numbers if processes[number].kind == kind]
    total = sum(process.kind == kind for process in processes)
    if not members:
        return ""
    if kind == "main":
        return "the main process"
    ranks = [process.rank for process in members if process.rank is not None]
    if kind == "rank" and len(ranks) == len(members) <= _MOST_NAMED:
        return f"{_WORDS[kind][len(ranks) > 1]} {_series([str(rank) for rank in ranks])} of {total}"
    return f"{len(members)} of {total} {_WORDS[kind][total != 1]}"


def _amounts(shares: Sequence[FindingInProcess], processes: Sequence[ProfiledProcess]) -> str:
    texts = [_amount(share) for share in shares]
    if len(set(texts)) == 1:
        return texts[0] + (" each" if len(texts) > 1 else "")
    named = [
        f"{process_name(processes[share.process])}: {text}"
        for share, text in zip(shares, texts, strict=True)
    ]
    more = len(named) - _MOST_NAMED
    return "; ".join(named[:_MOST_NAMED]) + (f"; {more} more" if more > 0 else "")


def _amount(share: FindingInProcess) -> str:
    calls = f"{share.count:,} call{'s' if share.count != 1 else ''}"
    return f"{calls}, {format_bytes(share.bytes_wasted)}"


def process_rows(finding: ValueFinding, profile: ValueProfile) -> Iterator[tuple[str, str]]:
    """Yield (process, calls, bytes and certainty there) for every process with the finding."""
    for share in finding.processes:
        name = process_name(profile.processes[share.process])
        yield name, f"{_amount(share)} wasted, {share.certainty.value}"
    for number in finding.contradicted_by:
        yield process_name(profile.processes[number]), "the same operator ran without this finding"


def scope_of_processes(profile: ValueProfile) -> Iterator[tuple[str, str]]:
    """Yield (label, text): the processes that the totals are over, and those that did not report."""
    processes = profile.processes
    if not processes:
        return
    counts: Counter[str] = Counter(process.kind for process in processes)
    without = sum(not process.torch for process in processes if process.reported)
    text = _series([_counted(kind, counts[kind]) for kind in _WORDS if counts[kind]])
    yield (
        "processes",
        f"{text}; totals are sums over them"
        + (f"; {without} did not import torch" if without else ""),
    )
    for kind, words in _WORDS.items():
        members = [process for process in processes if process.kind == kind]
        lost = [process for process in members if not process.reported and process.kind != "main"]
        if lost:
            why = Counter(_MISSING.get(process.state, "no result was read") for process in lost)
            reasons = ", ".join(f"{count} {reason}" for reason, count in why.items())
            of = f"{len(lost)} of {len(members)} {words[len(members) != 1]}"
            yield "not reported", f"{of}: {reasons}"
        failed = [process for process in members if process.state == "crashed"]
        if failed and kind != "main":
            text = f"{len(failed)} of {len(members)} {words[len(members) != 1]}"
            yield "failed", f"{text}: {_listed(failed, with_exit_code=True)}"


def steps_of_processes(profile: ValueProfile) -> str:
    """Return which process the number of steps is of; empty for a single process."""
    if not profile.processes or profile.steps <= 1:
        return ""
    most = [process for process in profile.processes if process.steps == profile.steps]
    return f" in {_the(_listed(most))}"


def _counted(kind: str, count: int) -> str:
    return f"{count:,} {_WORDS[kind][count != 1]}"


def _listed(processes: Sequence[ProfiledProcess], *, with_exit_code: bool = False) -> str:
    names = [
        process_name(process)
        + (f" (exit code {process.exit_code})" if with_exit_code and process.exit_code else "")
        for process in processes
    ]
    names = list(dict.fromkeys(names))
    more = len(names) - _MOST_NAMED
    return _series([*names[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


def _the(name: str) -> str:
    return f"the {name}" if name.startswith("main") else name


def _series(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
