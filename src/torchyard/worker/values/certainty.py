"""How sure a finding is, from the tests behind it: the one place where `proven` is said.

Plain data in, plain data out: the worker asks after its own tests, the yard again after a run of the
program that nobody watched. Imports neither torch nor anything of the yard.
"""

from typing import Any, Dict, List, Tuple

PROVEN = "proven"
LIKELY = "likely"
INPUT_DEPENDENT = "input-dependent"

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
    if not of_values:
        return LIKELY, _reason(tests, "it was seen, and not tested")
    failed = [test for test in of_values if not test["passed"]]
    if failed:
        return INPUT_DEPENDENT, "needed for: %s" % ", ".join(_named(failed))
    for name in (SAME_AGAIN, UNREAD, VALUES_VARIED):
        bad = [test for test in tests if test["test"] == name and not test["passed"]]
        if bad:
            return LIKELY, bad[0]["detail"]
    inputs = _inputs_with_enough_poisons(of_values)
    if len(inputs) < _LEAST_INPUTS:
        return LIKELY, _reason(tests, "tested on too few inputs: %s" % (", ".join(inputs) or "0"))
    needed = {
        SAME_AGAIN: "the operator was not run twice to see whether it is deterministic",
        NATIVE_PROGRAM: "no run of the program without the profiler has confirmed it",
    }
    if inside:
        needed[NATIVE_OPERATOR] = "the operator alone was not run without the profiler"
    for name, missing in needed.items():
        done = [test for test in tests if test["test"] == name]
        if not done:
            return LIKELY, missing
        bad = [test for test in done if not test["passed"]]
        if bad:
            return LIKELY, bad[0]["detail"] or missing
    return PROVEN, _proven(of_values, inputs)


def _inputs_with_enough_poisons(tests: List[Test]) -> List[str]:
    found: Dict[str, int] = {}
    for test in tests:
        enough = _LEAST_POISONS if test["test"] == POISON else 1
        found[test["inputs"]] = found.get(test["inputs"], 0) + (_LEAST_POISONS // enough)
    return [name for name, poisons in found.items() if poisons >= _LEAST_POISONS]


def _named(tests: List[Test]) -> List[str]:
    return sorted({test["inputs"] or "the program's own" for test in tests})


def _reason(tests: List[Test], otherwise: str) -> str:
    """What a test that could not be done said, else the general reason."""
    said = [test["detail"] for test in tests if not test["passed"] and test["detail"]]
    return said[0] if said else otherwise


def _proven(tests: List[Test], inputs: List[str]) -> str:
    what = {
        POISON: "other bits in its place changed no result",
        SKIP: "left out, no result changed",
        REPLACE: "replaced, no result changed",
    }
    said = [text for name, text in what.items() if any(test["test"] == name for test in tests)]
    poisons = sorted({test["poison"] for test in tests if test["poison"]})
    with_poisons = " (%s)" % ", ".join(poisons) if poisons else ""
    # What a test that passed has to add narrows what is proven.
    narrowed = sorted({test["detail"] for test in tests if test["detail"]})
    return (
        "%s%s, on %d inputs of these shapes and settings%s; the program does this work without "
        "the profiler, too"
        % (" and ".join(said), with_poisons, len(inputs), "".join(", " + part for part in narrowed))
    )
