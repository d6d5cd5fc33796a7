"""How certain a finding is, from the tests behind it: the only place that says `proven`.

Plain data in, plain data out: the worker asks after its own tests, the controller again after a
native run of the program. Imports neither torch nor anything of the controller.
"""

from typing import Any, Dict, List, Tuple

PROVEN = "proven"
"""For every input of these shapes, from what the operators and the source of the program say."""
TESTED = "tested"
"""In every trial that was made; nothing is said of other inputs."""
LIKELY = "likely"
INPUT_DEPENDENT = "input-dependent"

SEMANTICS = "semantics"
"""In how many of the calls does the work not matter, whatever the values are?"""
POISON = "poison"
"""Other bits where the write left its own: is any result different?"""
SKIP = "skip"
"""The write left out: is any result different?"""
REPLACE = "replace"
"""The work replaced by what the finding says is the same: is any result different?"""
SAME_AGAIN = "same again"
"""Two clean runs: are they the same? If not, no comparison says anything."""
VALUES_VARIED = "values varied"
"""Did every tensor that could matter get other values?"""
UNREAD = "unread"
"""Nothing read the memory between the two writes, and the second covers all of it."""
REFUSED = "refused"
"""The operator did not take these inputs. Says nothing; may be why there are too few."""
NATIVE_OPERATOR = "native operator"
"""The operator alone, without any profiler of values: is the work still there?"""
NATIVE_PROGRAM = "native program"
"""The program, run again without a profiler of values: is the work still there?"""

_OF_VALUES = (POISON, SKIP, REPLACE)
_LEAST_POISONS = 2
_LEAST_INPUTS = 2

Test = Dict[str, Any]


def make_test(
    test: str, passed: bool, *, inputs: str = "", poison: str = "", detail: str = ""
) -> Test:
    """The record of one test; the yard knows it as `core.values.ProofTest`."""
    return {
        "test": test,
        "passed": passed,
        "inputs": inputs,
        "poison": poison,
        "detail": detail,
    }


def judge(tests: List[Test], inside: bool) -> Tuple[str, str]:
    """Certainty and why; `inside` is for work that an operator does inside itself."""
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
    """What trials alone say: tested at most."""
    if not of_values:
        return LIKELY, _reason(tests, "it was seen, and not tested")
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
    """Which run without the profiler is missing or found nothing; empty when none is."""
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
    """Which input showed that the work is needed, or that only a part of it is wasted."""
    details = sorted({test["detail"] for test in failed if test["detail"]})
    if details:
        return details[0]
    inputs = sorted({test["inputs"] or "the program's own" for test in failed})
    return "a result changed without this work when the operator was given other inputs (%s)" % (
        "; ".join(inputs)
    )


def _reason(tests: List[Test], otherwise: str) -> str:
    """What a test that could not be done said, else the general reason."""
    details = [
        test["detail"]
        for test in tests
        if not test["passed"] and test["detail"] and test["test"] != SEMANTICS
    ]
    return details[0] if details else otherwise


def _held(tests: List[Test], inputs: List[str]) -> str:
    what = {
        POISON: "other bits in its place changed no result",
        SKIP: "left out, no result changed",
        REPLACE: "replaced, no result changed",
    }
    results = [text for name, text in what.items() if any(test["test"] == name for test in tests)]
    poisons = sorted({test["poison"] for test in tests if test["poison"]})
    with_poisons = " (%s)" % ", ".join(poisons) if poisons else ""
    # What a test that passed has to add narrows what was tested.
    narrowed = sorted({test["detail"] for test in tests if test["detail"]})
    return "%s%s, in %d trials on %d inputs of these shapes and settings%s" % (
        " and ".join(results),
        with_poisons,
        len(tests),
        len(inputs),
        "".join(", " + part for part in narrowed),
    )
