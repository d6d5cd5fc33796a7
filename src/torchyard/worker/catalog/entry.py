"""The record types of the catalogue and its tables. No torch, so that the controller can import them."""

import ast
from typing import Any, Dict, List, NamedTuple, Optional, Tuple


class Entry(NamedTuple):
    """One built-in workload. `batch_size` None: no batch dimension by default."""

    name: str
    modes: Tuple[str, ...]
    about: str
    batch_size: Optional[int]
    parameters: Dict[str, int]


class ListedWorkload(NamedTuple):
    """One workload in the list of a suite that accepts any name.

    modes            modes in a run of the whole suite; any mode can be requested by name
    gpu_batch_size   for a large GPU; None: not in the suite on GPUs
    cpu_batch_size   for a large server; None: not in the suite on CPUs
    """

    name: str
    modes: Tuple[str, ...]
    about: str
    gpu_batch_size: Optional[int]
    cpu_batch_size: Optional[int]


INFERENCE = ("inference",)
BOTH = ("inference", "training")
PHASES = ("prefill", "decode")
"""Modes of text generation: read the prompt, generate one token."""
SCRIPT_SUITE = "steps"
"""The suite of training scripts, which are timed between their steps."""
GENERATING_SUITES = ("models", "huggingface")
GENERATION = {"prompt": 128, "generate": 32, "static": 1}
"""Parameters of these modes: lengths of the prompt and of the generated text, and a static cache or a dynamic one."""


def table_rows(table: str) -> List[List[str]]:
    """Return the cells of a table: one row per line, cells separated by `|`."""
    return [[cell.strip() for cell in line.split("|")] for line in table.split("\n") if line]


def parameters(text: str) -> Dict[str, Any]:
    """Return the parameters of a text such as `layers=4 width=256`; of equal keys the last one."""
    pairs = (item.partition("=") for item in text.split())
    return {key: ast.literal_eval(value) for key, _, value in pairs}
