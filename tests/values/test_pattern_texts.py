"""Texts about patterns: complete, consistent with the thresholds, specific for known causes."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import Any

import pytest

from torchyard.cli.explain import load_explanations
from torchyard.values.model import Place, ValueFinding
from torchyard.values.pattern_texts import (
    FIELDS,
    load_pattern_texts,
    pattern_names,
    pattern_text,
    placeholders,
    suggestion_for,
)
from torchyard.worker.values.exchange import KERNEL_PREFIX

TEXTS = load_pattern_texts()


def finding(pattern: str, operator: str, **more: Any) -> ValueFinding:
    backward = more.pop("backward", False)
    place = Place(file="train.py", line=7, backward=backward)
    return ValueFinding(pattern=pattern, operator=f"aten::{operator}", place=place, **more)


@pytest.mark.parametrize("name", pattern_names())
def test_every_pattern_is_explained(name: str) -> None:
    text = pattern_text(name)
    assert text is not None
    assert len(text.short) <= 60
    for part in (text.definition, text.why, text.suggestion, text.doubts):
        assert part.strip().endswith("."), part
    entry = load_explanations()[name.replace(" ", "-")]
    assert entry["kind"] == "pattern of wasted work"
    assert "  " not in entry["text"]


def test_every_pattern_of_the_worker_has_a_text() -> None:
    pytest.importorskip("torch")
    package = importlib.import_module("torchyard.worker.values.patterns")
    names = {kind.name for kind in package._patterns()}
    assert names <= set(pattern_names())
    assert set(pattern_names()) - names == {"single zero"}  # told by the pattern of single values
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert {kind.__module__.rpartition(".")[2] for kind in package._patterns()} == modules


def test_templates_take_only_what_findings_have() -> None:
    templates = [advice.text for advice in TEXTS.advice]
    templates += [text.suggestion for text in TEXTS.patterns.values()]
    assert {name for template in templates for name in placeholders(template)} <= set(FIELDS)
    assert {advice.pattern for advice in TEXTS.advice} <= set(TEXTS.patterns)
    assert all(template.rstrip().endswith(".") for template in templates)


def test_thresholds_in_the_texts_are_those_of_the_rules() -> None:
    pytest.importorskip("torch")
    from torchyard.worker.values import exchange
    from torchyard.worker.values.patterns import (
        LEAST_FINDING_BYTES,
        duplicates,
        heavy_type,
        sparse_gradient,
        uniform_values,
        wasted_writes,
    )
    from torchyard.worker.values.patterns import uniform_values as frequent_values

    def mentions(name: str, *words: str) -> None:
        definition = " ".join(TEXTS.patterns[name].definition.split())
        assert all(word in definition for word in words), (name, words)

    worth = f"{LEAST_FINDING_BYTES >> 10} KiB"
    for name in ("duplicate", "heavy type", "structured", "approximate", "sparse gradient"):
        mentions(name, worth)
    mentions("guard that never fires", worth, "three times")
    mentions("unchanged across steps", worth, "three steps")
    assert (wasted_writes.LEAST_OCCURRENCES, duplicates.LEAST_STEPS) == (3, 3)
    mentions("redundant write", f"{wasted_writes.SHARE:.0%}".replace("%", " %"))
    shares = (
        frequent_values.ROW_SHARE,
        frequent_values.SHARE,
        frequent_values.ORDINARY_SHARE,
    )
    mentions("frequent values", *(f"{share:.0%}".replace("%", " %") for share in shares))
    mentions("frequent values", f"{frequent_values.LEAST_BYTES >> 10} KiB", "three of four calls")
    assert frequent_values.USUAL_SHARE == 0.75
    mentions(
        "heavy type", "read at least twice", f"{heavy_type.LEAST_INTEGER_BYTES >> 10} KiB", "1 MiB"
    )
    assert (heavy_type.LEAST_USES, heavy_type.LEAST_INDEX_BYTES) == (2, 1 << 20)
    mentions("sparse gradient", f"{sparse_gradient.SHARE:.0%}".replace("%", " %"))
    mentions("approximate", f"1/{round(1 / uniform_values.PRECISION)}")
    for name in ("single zero", "single value"):
        mentions(name, f"{exchange.Options().least_bytes >> 10} KiB")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            finding("dead initialisation", "zero_", detail="gradient zeroed only to be added to"),
            "set_to_none",
        ),
        (
            finding(
                "dead initialisation", "zeros", detail="zeroed only to be added to: the result"
            ),
            "first addend",
        ),
        (
            finding("dead initialisation", "zeros_like", path=("aten::mse_loss_backward",)),
            "Inside torch: `mse_loss_backward` fills its result",
        ),
        (
            finding("dead initialisation", "zeros", detail="overwritten piece by piece by copy_"),
            "torch.stack",
        ),
        (finding("dead initialisation", "zeros", detail="overwritten whole"), "torch.empty"),
        (finding("redundant write", "_foreach_mul_"), "clip_grad_norm_"),
        (
            finding("redundant write", "zero_", path=("aten::nll_loss2d_backward",)),
            "Inside torch: `nll_loss2d_backward`",
        ),
        (finding("redundant write", "zero_"), "holds this value already"),
        (finding("redundant write", "masked_fill_"), "padding rows"),
        (finding("duplicate", "clone", detail="a copy, and neither"), "use its source"),
        (finding("duplicate", "mul", backward=True, detail="the same bits as"), "square()"),
        (finding("duplicate", "mul", detail="the same bits as its own input"), "by one"),
        (
            finding(
                "duplicate",
                "addmm",
                detail="the same bits as aten::addmm computed before",
                evidence={"first": {"operator": "aten::addmm", "file": "train.py", "line": 3}},
            ),
            "addmm in line 3 has the same bits",
        ),
        (
            finding(
                "duplicate",
                "mm",
                evidence={"first": {"operator": "mm", "file": "net.py", "line": 3}},
            ),
            "line 3 of net.py",
        ),
        (finding("heavy type", "_to_copy", evidence={"fits": "bool"}), "mask as bool"),
        (finding("heavy type", "add", dtype="int64", evidence={"fits": "int32"}), "as int32"),
        (finding("heavy type", "mul", dtype="float64", evidence={"fits": "float32"}), "float32"),
        (finding("heavy type", "round", dtype="float32", evidence={"fits": "int8"}), "int8"),
        (finding("structured", "repeat", detail="constant along dimension 0"), "`expand`"),
        (finding("structured", "nonzero", detail="a line: each"), "everything was selected"),
        (finding("single value", "_softmax"), "over one element"),
        (finding("frequent values", "_to_copy"), "one-hot"),
        (finding("guard that never fires", "masked_fill"), "no padding"),
        (finding("unchanged across steps", "triu"), "register_buffer"),
        (finding("unchanged across steps", "exp"), "before the loop"),
        (
            finding("sparse gradient", "embedding_dense_backward", detail="3 of 9 rows"),
            "sparse=True",
        ),
        (finding("sparse gradient", "select_backward"), "unbind"),
        (finding("sparse gradient", "slice_backward"), "split"),
        (finding("approximate", "add"), "1/256"),
        (finding("from the future", "add"), ""),
    ],
)
def test_known_causes_get_their_own_advice(found: ValueFinding, words: str) -> None:
    suggestion = suggestion_for(found)
    assert words in suggestion
    assert "{" not in suggestion
    assert "  " not in suggestion


def test_a_generated_kernel_is_not_told_to_use_empty_memory() -> None:
    eager = finding("dead initialisation", "zeros", detail="overwritten whole by aten::copy_")
    assert "torch.empty" in suggestion_for(eager)
    kernel = replace(eager, operator=f"{KERNEL_PREFIX}cpp_fused_sin_0 (sin)")
    assert "Leave out this write in the compiled function" in suggestion_for(kernel)


def test_text_from_programs_is_not_used_as_a_template() -> None:
    odd = finding("structured", "repeat", detail="{operator!r} {0} {x.__class__}")
    assert "{operator!r} {0} {x.__class__}" in suggestion_for(odd)


def test_every_advice_can_be_reached() -> None:
    reached = set()
    for advice in TEXTS.advice:
        example = finding(
            advice.pattern,
            advice.operators[0] if advice.operators else "some_operator",
            detail=advice.detail,
            path=(f"aten::{advice.inside.replace('*', 'other')}",) if advice.inside else (),
            dtype=advice.dtype,
            evidence={"fits": advice.fits} if advice.fits else {},
            backward=advice.backward,
        )
        if advice.kernel:
            example = replace(example, operator=f"{KERNEL_PREFIX}cpp_fused_add_0 (add)")
        first = next(one for one in TEXTS.advice if one.matches(example))
        reached.add(TEXTS.advice.index(first))
    assert reached == set(range(len(TEXTS.advice)))
