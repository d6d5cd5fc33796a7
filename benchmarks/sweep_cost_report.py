"""The tables of `sweep_cost.py`: what each method took, and how often its answer is another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchyard.stats.distributions import student_quantile
from torchyard.stats.suite import wilson_interval

MARGIN = 0.05
Line = dict[str, Any]


def print_report(lines: Sequence[Line]) -> None:
    """Every table that the lines suffice for."""
    by_case: dict[str, dict[str, Line]] = {}
    whole = [line for line in lines if line["method"] == "together"]
    for line in lines:
        if line["method"] != "together":
            by_case.setdefault(line["case"], {})[line["method"]] = line
    both = [found for found in by_case.values() if {"fixed", "adaptive"} <= set(found)]
    if not both:
        print("no workload was measured by both methods")
        return
    print_costs(both)
    for line in whole:
        said = ", ".join(f"{count} {word}" for word, count in sorted(line["verdicts"].items()))
        print(
            f"\nas one sweep with {line['at_most']} cells at once: {line['wall_s']:.0f} s for "
            f"{line['cells']} workloads ({said})"
        )
    print_ratios(both)
    print_verdicts(both)


def print_costs(both: Sequence[dict[str, Line]]) -> None:
    print(f"\n{len(both)} workloads, from the first process to the answer\n")
    heads = ("method", "wall s", "start", "compile", "measure", "CPU s", "of it measuring")
    print_row(*heads, "processes", "pairs")
    print_row(*["---"] + ["---:"] * 8)
    for method in ("fixed", "adaptive"):
        rows = [found[method] for found in both]
        keys = ("wall_s", "start_s", "compile_s", "measure_s", "cpu_s", "measure_cpu_s")
        sums = [math.fsum(row[key] for row in rows) for key in keys]
        counts = [sum(row[key] for row in rows) for key in ("processes", "pairs")]
        print_row(method, *(f"{total:.0f}" for total in sums), *map(str, counts))


def print_ratios(both: Sequence[dict[str, Line]]) -> None:
    """Adaptive over fixed: of the sums, and over workloads with its interval."""
    print("\nadaptive over fixed\n")
    print_row("what", "of the sums", "geometric mean over workloads")
    print_row("---", "---:", "---:")
    for name, keys in (
        ("everything", ("start_s", "compile_s", "measure_s")),
        ("all but compiling", ("start_s", "measure_s")),
        ("measuring alone", ("measure_s",)),
    ):
        pairs = [
            [sum(found[m][key] for key in keys) for m in ("fixed", "adaptive")] for found in both
        ]
        whole = math.fsum(ours for _, ours in pairs) / math.fsum(theirs for theirs, _ in pairs)
        print_row(name, f"{whole:.2f}", mean_text([math.log(b / a) for a, b in pairs]))
    print_several_processes(both)


def print_several_processes(both: Sequence[dict[str, Line]]) -> None:
    """What thirty repeats would cost if they, too, told how much processes differ."""
    most = max(found["adaptive"]["processes"] for found in both)
    ours = math.fsum(found["adaptive"]["wall_s"] for found in both)
    print("\nthirty repeats in each of several processes, computed from one of them\n")
    print_row("processes", "wall s", "of which `adaptive` needs")
    print_row("---", "---:", "---:")
    names = {
        3: "3, the fewest that have a spread",
        most: f"{most}, what the hardest workload needed",
    }
    for processes, name in names.items():
        theirs = math.fsum(cost_of_processes(found, processes) for found in both)
        print_row(name, f"{theirs:.0f}", f"{ours / theirs:.0%}")


def cost_of_processes(found: dict[str, Line], processes: int) -> float:
    """Each starts and measures anew; compilers find their caches from the second one on."""
    fixed, later = found["fixed"], processes - 1
    own = fixed["start_s"] + fixed["measure_s"]
    again = own + found["adaptive"]["compile_warm_s"]
    return float(own + fixed["compile_s"] + later * again)


def print_verdicts(both: Sequence[dict[str, Line]]) -> None:
    known = [found for found in both if found["fixed"]["again"] or "reference" in found]
    print(
        f"\nanswers that differ from what is known of {len(known)} workloads: "
        f"{sum(found['fixed']['again'] for found in known)} compared with themselves, the others by a "
        "reference run of ten times the length\n"
    )
    print_row(
        "rule",
        "another answer",
        "95 % interval",
        "undecided",
        "false alarms of those with themselves",
    )
    print_row("---", "---:", "---:", "---:", "---:")
    for rule in ("fixed, 5 %", "fixed, p < 0.1", "adaptive"):
        judged = [
            (said(found, rule), truth(found, rule), found["fixed"]["again"]) for found in known
        ]
        answered = [(word, right, again) for word, right, again in judged if word != "undecided"]
        wrong = sum(word not in right for word, right, _ in answered)
        alarms = sum(word != "same" and again for word, _, again in answered)
        interval = wilson_interval(wrong, len(answered))
        print_row(
            rule,
            f"{wrong} of {len(answered)}",
            f"{interval.low:.0%} to {interval.high:.0%}",
            str(len(judged) - len(answered)),
            f"{alarms} of {sum(again for _, _, again in answered)}",
        )


def said(found: dict[str, Line], rule: str) -> str:
    method = "adaptive" if rule == "adaptive" else "fixed"
    return str(found[method]["verdicts"][rule])


def truth(found: dict[str, Line], rule: str) -> set[str]:
    """The words that are right: several where the reference lies on the border between them.

    A rule is held to its own question: `p < 0.1` asks for any difference, 5 % for one that large,
    and `adaptive` calls the same what lies within 5 % for sure and else says on which side of 1.
    """
    if found["fixed"]["again"]:
        return {"same"}
    low, high = found["reference"]["low"], found["reference"]["high"]
    right = set()
    if rule == "fixed, p < 0.1":
        right |= {"faster"} if high > 1.0 else set()
        right |= {"slower"} if low < 1.0 else set()
        return right | ({"same"} if low <= 1.0 <= high else set())
    beyond_from = 1.0 + MARGIN if rule == "fixed, 5 %" else 1.0
    right |= {"faster"} if high > beyond_from else set()
    right |= {"slower"} if low < (1.0 - MARGIN if rule == "fixed, 5 %" else 1.0) else set()
    return right | ({"same"} if high > 1.0 - MARGIN and low < 1.0 + MARGIN else set())


def mean_text(logs: Sequence[float]) -> str:
    centre = math.fsum(logs) / len(logs)
    if len(logs) == 1:
        return f"{math.exp(centre):.2f}"
    variance = math.fsum((log - centre) ** 2 for log in logs) / (len(logs) - 1)
    half = student_quantile(0.975, len(logs) - 1) * math.sqrt(variance / len(logs))
    return f"{math.exp(centre):.2f} [{math.exp(centre - half):.2f}, {math.exp(centre + half):.2f}]"


def print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")
