"""Processors and NUMA nodes as they are written in files."""

from __future__ import annotations

from typing import Final

from torchyard.core.processor_lists import cpu_list, cpus_of_list
from torchyard.errors import UsageError

__all__ = ["check_cores", "check_memory"]

_POLICIES: Final = ("bind", "interleave")


def check_cores(text: str, *, where: str) -> str:
    """A list of processors in its shortest form; empty stays empty."""
    if not text.strip():
        return ""
    try:
        found = cpus_of_list(text)
    except ValueError as error:
        raise UsageError(
            f"{where}: {text!r} is no list of processors", why=str(error), hint='such as "0-3,8"'
        ) from error
    if not found:
        raise UsageError(f"{where}: {text!r} names no processor", hint='such as "0-3,8"')
    return cpu_list(found)


def check_memory(text: str, *, where: str) -> str:
    """`bind:NODES` or `interleave:NODES`; empty stays empty."""
    if not text.strip():
        return ""
    policy, colon, nodes = text.strip().partition(":")
    if policy not in _POLICIES or not colon:
        raise UsageError(
            f"{where}: {text!r} does not say where memory comes from",
            hint='"bind:0" or "interleave:0-1"',
        )
    return f"{policy}:{check_cores(nodes or ',', where=where)}"
