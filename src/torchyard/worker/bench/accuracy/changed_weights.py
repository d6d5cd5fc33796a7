"""The accuracy record of a variant whose weights differ from the baseline's by design: quantised weights.

Such results are neither `pass`, which means equal up to rounding, nor wrong. They were compared with those of the
dequantised weights; the difference from the baseline is reported.
"""

import math
from typing import Any, Dict

from torchyard.worker.bench.accuracy.tensors import (
    largest_difference,
    place_for,
    relative_distance,
    shapes_of,
    to_plain,
)
from torchyard.worker.bench.variant import VariantRunner

RIGHT = ("pass", "less-accurate")


def describe(
    runner: VariantRunner, seed: int, baseline: Dict[str, Any], record: Dict[str, Any]
) -> Dict[str, Any]:
    """Return the record with the difference from the baseline; `record` compares with the dequantised weights."""
    weights = runner.weights or str(baseline.get("weights", ""))
    text = "weights=%s changes results by design" % weights
    raw = runner.results(seed, baseline["baseline"])[0]
    place = place_for(raw)
    results = to_plain({"output": raw["output"]}, place)
    expected = to_plain({"output": baseline["baseline"]["output"]}, place)
    if shapes_of(results) != shapes_of(expected):
        return dict(
            record, status="fail", detail="its results have other shapes than the baseline's"
        )
    largest = largest_difference(results, expected, runner.hardware.comparison_place)
    relative = relative_distance(results, expected)
    text += ": relative difference from the baseline %.2g" % relative
    method = record.get("method", "none").replace("reference", "reference with the same weights")
    changed = dict(record, method=method)
    if record["status"] not in RIGHT:
        return dict(changed, detail=_joined(str(record.get("detail", "")), text))
    agreement = (
        "it agrees with its dequantised weights up to rounding"
        if record["status"] == "pass"
        else "compared with its dequantised weights: " + str(record["detail"])
    )
    return dict(
        changed,
        status="less-accurate",
        detail=_joined(text, agreement),
        max_error=largest if math.isfinite(largest) else None,
    )


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)
