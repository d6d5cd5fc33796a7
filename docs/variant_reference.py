# ruff: noqa: INP001  # beside the pages, not a package
"""Generate the reference page about variants; used by generate.py."""

from __future__ import annotations

from torchyard.core.study import PRECISIONS
from torchyard.worker.bench.backend_names import BACKENDS
from torchyard.worker.bench.options import OPTIONS, Option

_ABOUT = """\
A variant consists of parts joined by `+`, in any order: at most one backend, precision, target and environment, and any
number of options. `inductor+bfloat16+channels-last` is a backend, a precision and an option.
"""
_OPTIONS = """\
An option applies to one variant. `model`: set once, on a copy of the model that only variants with this option share.
`call`: set during its calls and reset after each block, so other variants of the process are not affected. `compile`: set
while this variant is compiled. The errors of options that reduce precision by design are reported with the row; for quantised
weights see [the checks](../howto/measure-text-generation.md#quantised-weights).
"""
_SETTINGS = """\
`inductor.NAME=VALUE` and `dynamo.NAME=VALUE` set `torch._inductor.config.NAME` and `torch._dynamo.config.NAME`, including
nested ones: `inductor.freezing=true`, `inductor.cpp.threads=2`. If the target's torch has no such name, or the type does not
match, the variant fails with the nearest name.

`threads=N` is written like an option but applies to the process, so it creates an environment: `eager+threads=1`.
"""


def variants_page(written_by: str) -> str:
    """Backends, precisions and options."""
    lines = [written_by, "# Variants\n", _ABOUT]
    lines += ["## Backends\n", "| backend | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in BACKENDS.items()]
    lines += ["| `dynamo:NAME` | torch.compile with another registered backend |"]
    lines += ["| `FILE.py:FUNCTION` | the result of your function, which takes the module |", ""]
    lines += ["## Precisions\n", ", ".join(f"`{name}`" for name in PRECISIONS) + "\n"]
    lines += ["## Options\n", _OPTIONS]
    lines += ["| option | applied | less precision | meaning |", "|---|---|---|---|"]
    lines += [_row(option) for option in OPTIONS]
    lines += ["", _SETTINGS]
    return "\n".join(lines).rstrip() + "\n"


def _row(option: Option) -> str:
    choices = "\\|".join(option.choices)
    written = f"`{option.name}={choices}`" if choices else f"`{option.name}`"
    what = option.what + ("; inference only" if option.inference_only else "")
    marked = "yes" if option.changes_results else ""
    return f"| {written} | {option.applied} | {marked} | {what} |"
