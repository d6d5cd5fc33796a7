"""Certainty of a finding, computed from its tests: the only module that assigns `proven`.

Works on plain data: the worker calls it after its own tests, the controller again after a native run
of the program. Imports neither torch nor the controller.
"""

from typing import Any, Dict, List, Tuple

PROVEN = "proven"
"""For every input of these shapes, by the definitions of the operators and the source."""
TESTED = "tested"
"""In every trial; other inputs were not tried."""
LIKELY = "likely"
INPUT_DEPENDENT = "input-dependent"

SEMANTICS = "semantics"
"""In how many calls is the work irrelevant for all values?"""
POISON = "poison"
"""Other bits in place of the written ones: does any result differ?"""
SKIP = "skip"
"""The write omitted: does any result differ?"""
REPLACE = "replace"
"""The work replaced by its claimed equivalent: does any result differ?"""
SAME_AGAIN = "same again"
"""Are two unmodified runs identical? If not, comparisons are meaningless."""
VALUES_VARIED = "values varied"
"""Did every relevant tensor get other values?"""
UNREAD = "unread"
"""Nothing read the memory between two writes, and the second one covers all of it."""
NEEDED = "needed"
"""Is the work of no other call of the same line needed?"""
REFUSED = "refused"
"""The operator rejected these inputs; may explain why there are too few."""
NATIVE_OPERATOR = "native operator"
"""The operator alone, without value profiling: does the work still occur?"""
NATIVE_PROGRAM = "native program"
"""The program, run again without value profiling: does the work still occur?"""

_OF_VALUES = (POISON, SKIP, REPLACE, NEEDED)
_LEAST_POISONS = 2
_LEAST_INPUTS = 2

Test = Dict[str, Any]


def make_test(
    test: str, passed: bool, *, inputs: str = "", poison: str = "", detail: str = ""
) -> Test:
    """Return the record of one test; the controller's type is `values.model.ProofTest`."""
    return {
        "test": test,
        "passed": passed,
        "inputs": inputs,
        "poison": poison,
        "detail": detail,
    }


def certainty_of(tests: List[Test], inside: bool) -> Tuple[str, str]:
    """Return certainty and reason; `inside` is for work inside an operator."""
    of_values = [test for test in tests if test["test"] in _OF_VALUES]
    failed = [test for test in of_values if not test["passed"]]
    if failed:
        return INPUT_DEPENDENT, _why_needed(failed)
    semantics = [test for test in tests if test["test"] == SEMANTICS]
    missing = _not_confirmed(tests, inside)
    unread = [test for test in tests if test["test"] == UNREAD and not test["passed"]]
    if semantics and all(test["passed"] for test in semantics) and not unread:
        if missing:
            return LIKELY, missing
        return PROVEN, "for every input of these shapes: %s" % semantics[0]["detail"]
    certainty, why = _trial_certainty(tests, of_values, missing)
    partly = [test["detail"] for test in semantics if test["detail"]]
    return certainty, "; ".join([why, *partly])


def _trial_certainty(tests: List[Test], of_values: List[Test], missing: str) -> Tuple[str, str]:
    """Return certainty and reason from trials alone: at most tested."""
    if not of_values:
        return LIKELY, _reason(tests, "it was observed, but not tested")
    for name in (SAME_AGAIN, UNREAD, VALUES_VARIED):
        bad = [test for test in tests if test["test"] == name and not test["passed"]]
        if bad:
            return LIKELY, bad[0]["detail"]
    inputs = _inputs_with_enough_poisons(of_values)
    if len(inputs) < _LEAST_INPUTS:
        return LIKELY, _reason(tests, "tested on too few inputs: %s" % (", ".join(inputs) or "0"))
    if not any(test["test"] == SAME_AGAIN for test in tests):
        return LIKELY, "the operator was not run twice to see whether it is deterministic"
    if missing:
        return LIKELY, missing
    return TESTED, _held(of_values, inputs)


def _not_confirmed(tests: List[Test], inside: bool) -> str:
    """Return which run without the profiler is missing or failed; empty if none."""
    needed = {NATIVE_PROGRAM: "no run of the program without the profiler has confirmed it"}
    if inside:
        needed[NATIVE_OPERATOR] = "the operator alone was not run without the profiler"
    for name, missing in needed.items():
        done = [test for test in tests if test["test"] == name]
        if not done:
            return missing
        bad = [test for test in done if not test["passed"]]
        if bad:
            return bad[0]["detail"] or missing
    return ""


def _inputs_with_enough_poisons(tests: List[Test]) -> List[str]:
    poison_counts: Dict[str, int] = {}
    for test in tests:
        enough = _LEAST_POISONS if test["test"] == POISON else 1
        poison_counts[test["inputs"]] = poison_counts.get(test["inputs"], 0) + (
            _LEAST_POISONS // enough
        )
    return [name for name, poisons in poison_counts.items() if poisons >= _LEAST_POISONS]


def _why_needed(failed: List[Test]) -> str:
    """Return which input needed the work, or that only a part of it is wasted."""
    details = sorted({test["detail"] for test in failed if test["detail"]})
    if details:
        return details[0]
    inputs = sorted({test["inputs"] or "the program's own" for test in failed})
    return "a result changed without this work when the operator was given other inputs (%s)" % (
        "; ".join(inputs)
    )


def _reason(tests: List[Test], otherwise: str) -> str:
    """Return the detail of a failed test, else the general reason."""
    details = [
        test["detail"]
        for test in tests
        if not test["passed"] and test["detail"] and test["test"] != SEMANTICS
    ]
    return details[0] if details else otherwise


def _held(tests: List[Test], inputs: List[str]) -> str:
    what = {
        POISON: "replaced by poison values, no result changed",
        SKIP: "omitted, no result changed",
        REPLACE: "replaced, no result changed",
    }
    results = [text for name, text in what.items() if any(test["test"] == name for test in tests)]
    poisons = sorted({test["poison"] for test in tests if test["poison"]})
    with_poisons = " (%s)" % ", ".join(poisons) if poisons else ""
    # Details of passed tests restrict what was tested.
    narrowed = sorted({test["detail"] for test in tests if test["detail"]})
    return "%s%s, in %d trials on %d inputs of these shapes and settings%s" % (
        " and ".join(results),
        with_poisons,
        len(tests),
        len(inputs),
        "".join(", " + part for part in narrowed),
    )
