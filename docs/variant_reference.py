# ruff: noqa: INP001  # beside the pages, not a package
"""The reference page about parts of a variant. Used by generate.py, which writes it."""

from __future__ import annotations

from torchyard.core.study import PRECISIONS
from torchyard.worker.bench.backend_names import BACKENDS
from torchyard.worker.bench.options import OPTIONS, Option

_ABOUT = """\
A variant is parts joined by `+`, in any order: at most one backend, precision, target and environment, and any number
of options. `inductor+bfloat16+channels-last` is a backend, a precision and an option.
"""
_OPTIONS = """\
An option is set for one variant inside its process. `model`: once, on a copy of the model that only variants with it
share. `call`: around its calls, and put back after each block, so that variants of one process do not see each other's.
`compile`: while the compiler works for this variant.

What computes in less precision by design is marked; its error is reported with the row.
"""
_SETTINGS = """\
`inductor.NAME=VALUE` and `dynamo.NAME=VALUE` are settings of the compiler's own (`torch._inductor.config`,
`torch._dynamo.config`), also nested ones: `inductor.freezing=true`, `inductor.cpp.threads=2`. A name that the target's
torch does not have, or a value of another kind, fails this variant with the nearest name.

`threads=N` is written like an option. It belongs to the process, so it makes an environment: `eager+threads=1`.
"""


def variants_page(written_by: str) -> str:
    """Backends, precisions and options."""
    lines = [written_by, "# Variants\n", _ABOUT]
    lines += ["## Backends\n", "| backend | what runs |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in BACKENDS.items()]
    lines += ["| `dynamo:NAME` | torch.compile with a backend that dynamo has registered |"]
    lines += ["| `FILE.py:FUNCTION` | what your function makes of the module |", ""]
    lines += ["## Precisions\n", ", ".join(f"`{name}`" for name in PRECISIONS) + "\n"]
    lines += ["## Options\n", _OPTIONS]
    lines += ["| option | applied | less precision | what it does |", "|---|---|---|---|"]
    lines += [_row(option) for option in OPTIONS]
    lines += ["", _SETTINGS]
    return "\n".join(lines).rstrip() + "\n"


def _row(option: Option) -> str:
    written = [f"`{option.name}={choice}`" for choice in option.choices] or [f"`{option.name}`"]
    what = option.what + ("; inference only" if option.inference_only else "")
    marked = "yes" if option.changes_results else ""
    return f"| {' '.join(written)} | {option.applied} | {marked} | {what} |"
