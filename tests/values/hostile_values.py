"""Profiles in which every text is hostile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

from tests.values.sample_profile import sample_profile
from torchyard.values.model import ValueProfile

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script><!--",
    "</title></pre></details></svg><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "{{ 7 * 7 }} {% raw %}",
    "`code` | *star* [a](javascript:alert(1)) @everyone",
    '"]; malicious [label="\\N \\" \\',
    "\x1b[31m<b>\x1b]8;;javascript:alert(1)\x1b\\x\u202e\x00\udcff\r\n\t\u2028",
    "x" * 100_000,
    "{operator} {first.__class__}",
)


def hostile_profile(text: str) -> ValueProfile:
    """The sample with this text in place of every text."""
    changed: ValueProfile = _changed(sample_profile(), text)
    return dataclasses.replace(changed, state="crashed")


def _changed(value: Any, text: str) -> Any:
    if isinstance(value, Enum) or value is None:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _changed(getattr(value, f.name), text) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, str):
        return text
    if isinstance(value, Mapping):
        kept = {key: _changed(item, text) for key, item in value.items()}
        return {**kept, text: _changed(next(iter(value.values()), 1), text)}
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(item, text) for item in value)
    return value
