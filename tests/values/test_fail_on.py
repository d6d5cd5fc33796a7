"""Limits of `--fail-on`: parsing, and which findings cross them."""

from __future__ import annotations

import pytest

from torchyard.errors import UsageError
from torchyard.values.fail_on import crossed, parse_limit
from torchyard.values.model import Certainty, Place, Proof, ValueFinding, ValueProfile, Worth
from torchyard.values.pattern_texts import pattern_names

PATTERNS = pattern_names()


def finding(
    pattern: str = "redundant write",
    certainty: Certainty = Certainty.PROVEN,
    *,
    wasted: int = 4 << 20,
    share: float | None = 0.02,
) -> ValueFinding:
    return ValueFinding(
        pattern=pattern,
        operator="aten::zero_",
        place=Place(file="train.py", line=3),
        bytes_wasted=wasted,
        proof=Proof(certainty=certainty),
        worth=Worth(share_of_step=share),
    )


def profile(*findings: ValueFinding, steps: int = 5) -> ValueProfile:
    """Four steps looked at: the counter stands at the step after the last."""
    return ValueProfile(format=1, state="finished", torch="2.13", steps=steps, findings=findings)


def fails(limit: str, *findings: ValueFinding) -> list[ValueFinding]:
    found = crossed(profile(*findings), [parse_limit(limit, PATTERNS)])
    return [one for _, one in found]


def test_any_finding_crosses_any() -> None:
    likely, proven = finding(certainty=Certainty.LIKELY), finding()
    assert fails("any", likely, proven) == [likely, proven]
    assert fails("any") == []


def test_a_certainty_and_a_pattern_must_both_fit() -> None:
    wanted = finding("duplicate")
    others = (finding("duplicate", Certainty.LIKELY), finding("redundant write"))
    assert fails("proven,duplicate", wanted, *others) == [wanted]
    assert fails("likely", wanted, *others) == [others[0]]
    assert fails("input-dependent", wanted, *others) == []


def test_bytes_are_of_a_step() -> None:
    assert fails("bytes=1MiB", finding(wasted=4 << 20))
    assert not fails("bytes=1MiB", finding(wasted=(4 << 20) - 4096))


def test_a_share_that_was_not_measured_crosses_nothing() -> None:
    assert fails("share=2%", finding(share=0.02))
    assert not fails("share=2%", finding(share=0.019))
    assert not fails("share=2%", finding(share=None))


def test_a_finding_is_named_once_with_its_first_limit() -> None:
    limits = [parse_limit(text, PATTERNS) for text in ("share=50%", "proven", "any")]
    found = crossed(profile(finding()), limits)
    assert [limit.text for limit, _ in found] == ["proven"]


@pytest.mark.parametrize("text", ["provn", "bytes=many", "share=x", "bytes", "any,nothing", ""])
def test_invalid_limits_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit(text, PATTERNS)
    assert "--fail-on" in caught.value.what
    assert "proven" in caught.value.hint
