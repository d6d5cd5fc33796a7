"""Variants from text: backend, precision, target, environment and options joined by `+`.

`inductor+bfloat16+nightly+tcmalloc` has one of each; parts that are not given come from the
defaults. There may be any number of options: `eager+channels-last+matmul-precision=high`.
`threads=N` is written like an option but belongs to the process, so it creates an environment. Also
checks CPU lists and NUMA nodes of environments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.bench.request import SpecText
from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.core.number_checks import CHECKS
from torchyard.core.records import nearest_hint, shown
from torchyard.core.study import (
    DEFAULT_ENVIRONMENT,
    PRECISIONS,
    Environment,
    Precision,
    Scalar,
    Target,
    Variant,
)
from torchyard.core.variant_parts import BACKENDS, DEFAULT_TARGET, THREADS, Kind, kinds_of
from torchyard.errors import UsageError
from torchyard.worker.bench import options

_POLICIES: Final = ("bind", "interleave")


def check_cores(text: str, *, where: str) -> str:
    """Return a CPU list in canonical form; an empty text stays empty."""
    if not text.strip():
        return ""
    try:
        cpus = cpus_of_list(text)
    except ValueError as error:
        raise UsageError(
            f"{where}: {text!r} is not a CPU list",
            why=str(error),
            hint='write a list such as "0-3,8"',
        ) from error
    if not cpus:
        raise UsageError(f"{where}: {text!r} names no CPU", hint='write a list such as "0-3,8"')
    return cpu_list(cpus)


def check_memory(text: str, *, where: str) -> str:
    """`bind:NODES` or `interleave:NODES`; empty stays empty."""
    if not text.strip():
        return ""
    policy, colon, nodes = text.strip().partition(":")
    if policy not in _POLICIES or not colon:
        raise UsageError(
            f"{where}: {text!r} is not a NUMA memory policy",
            hint='use "bind:0" or "interleave:0-1"',
        )
    return f"{policy}:{check_cores(nodes or ',', where=where)}"


_SHORT_PRECISIONS: Final = {
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "autocast": "amp",
}
_FUNCTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DYNAMO_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts that variants of a study can consist of."""

    targets: Mapping[str, Target]
    environments: Mapping[str, Environment]
    here: Target
    """The interpreter that Torchyard runs in."""
    default_precision: Precision = "float32"

    def words(self) -> list[str]:
        """Return all texts that are a valid part."""
        named = [*self.targets, *self.environments, DEFAULT_ENVIRONMENT.name, DEFAULT_TARGET]
        settings = [f"{head}.NAME=VALUE" for head in options.PREFIXES] + ["threads=N"]
        return [*BACKENDS, *PRECISIONS, *named, "dynamo:NAME", *options.names(), *settings]


def parse_variant(spec: SpecText, parts: Parts) -> Variant:
    """Parse a variant; its name is the text until short names are assigned."""
    parts_by_kind: dict[Kind, str] = {}
    chosen_options: dict[str, Scalar] = {}
    threads: int | None = None
    for word in (part.strip() for part in spec.text.split("+")):
        if word.partition("=")[0] == THREADS:
            if threads is not None:
                raise _twice(THREADS, spec)
            threads = _threads(word, spec)
            continue
        kind, value = _recognize(word, spec, parts)
        if kind == "option":
            name, setting = _option(word, spec)
            if name in chosen_options:
                raise _twice(name, spec)
            chosen_options[name] = setting
            continue
        if kind in parts_by_kind:
            raise UsageError(
                f"{spec.where}: {spec.text!r} has two parts of one kind",
                why=f"{parts_by_kind[kind]!r} and {value!r} are both "
                f"{'an' if kind == 'environment' else 'a'} {kind}",
                hint=f"keep one {kind}; write two variants as two candidates",
            )
        parts_by_kind[kind] = value
    backend = parts_by_kind.get("backend", "eager")
    for name in chosen_options:
        reason = options.why_not(name, backend)
        if reason:
            raise UsageError(
                f"{spec.where}: {spec.text!r} is not a valid combination",
                why=reason,
                hint=f"remove {name}, or use a backend that supports it, such as inductor",
            )
    for wrapper in options.WRAPPERS:
        if any(name.startswith(f"{wrapper}.") for name in chosen_options):
            chosen_options.pop(wrapper, None)  # its settings include it
    environment = parts.environments.get(parts_by_kind.get("environment", ""), DEFAULT_ENVIRONMENT)
    return Variant(
        name=spec.text,
        target=_target(parts_by_kind.get("target"), parts),
        backend=backend,
        precision=next(
            (one for one in PRECISIONS if one == parts_by_kind.get("precision")),
            parts.default_precision,
        ),
        environment=environment if threads is None else _with_threads(environment, threads),
        options=tuple(sorted(item for item in chosen_options.items() if not _is_off(*item))),
    )


def _twice(name: str, spec: SpecText) -> UsageError:
    return UsageError(
        f"{spec.where}: {spec.text!r} has the option {name} twice",
        hint="keep one; write two variants as two candidates",
    )


def _option(word: str, spec: SpecText) -> tuple[str, Scalar]:
    try:
        return options.parse(word)
    except options.BadOption as error:
        raise UsageError(f"{spec.where}: {error}", hint=error.hint) from error


def _is_off(name: str, value: Scalar) -> bool:
    """Whether the option is a disabled flag; a compiler setting may be on by default and is kept."""
    return value is False and "." not in name


def _threads(word: str, spec: SpecText) -> int:
    text = word.partition("=")[2]
    try:
        return int(CHECKS["threads"].read(text, where=spec.where))
    except UsageError as error:
        raise UsageError(
            f"{spec.where}: {shown(word)} is not a number of threads",
            why=error.hint,
            hint="write threads=N, such as threads=1",
        ) from error


def _with_threads(environment: Environment, threads: int) -> Environment:
    """Return the environment with that many threads, and a name that parses to it."""
    own = f"{THREADS}={threads}"
    default = environment.name == DEFAULT_ENVIRONMENT.name
    return replace(
        environment, name=own if default else f"{environment.name}+{own}", threads=threads
    )


def with_short_names(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return the variants, named by the parts that differ; a repeated variant is named `...-again`.

    A precision other than float32 and options are always part of the name; otherwise a bfloat16
    table would look like a float32 table.
    """
    aspects = [_aspects(variant) for variant in variants]
    differing = [index for index in range(4) if len({aspect[index] for aspect in aspects}) > 1]
    keep_backend = not differing
    named: list[Variant] = []
    used_names: set[str] = set()
    for variant, aspect in zip(variants, aspects, strict=True):
        target, backend, precision, environment, chosen_options = aspect
        words = [
            target if 0 in differing else "",
            Path(backend).name if 1 in differing or keep_backend else "",
            precision if 2 in differing or precision != "float32" else "",  # noqa: PLR2004
            environment if 3 in differing else "",  # noqa: PLR2004
            chosen_options,
        ]
        name = "+".join(word for word in words if word)
        if name in used_names:
            repeated = any(aspect == _aspects(variant) for aspect in aspects[: len(named)])
            name = f"{name}-again" if repeated else variant.name
        if name in used_names:
            raise UsageError(
                f"the variant {variant.name!r} is given more than once",
                hint="remove the repetition",
            )
        used_names.add(name)
        named.append(replace(variant, name=name))
    return tuple(named)


def _aspects(variant: Variant) -> tuple[str, str, str, str, str]:
    return (
        variant.target.name,
        variant.backend,
        variant.precision,
        variant.environment.name,
        options.as_text(dict(variant.options)),
    )


def _target(name: str | None, parts: Parts) -> Target:
    if name is None:  # the first named target, else the interpreter that Torchyard runs in
        return next(iter(parts.targets.values()), parts.here)
    return parts.targets.get(name, parts.here)


def _recognize(word: str, spec: SpecText, parts: Parts) -> tuple[Kind, str]:
    if not word:
        raise UsageError(
            f"{spec.where}: {spec.text!r} has an empty part",
            hint="join parts with one +, such as inductor+bfloat16",
        )
    if ".py:" in word or word.endswith(".py"):
        return "backend", _user_backend(word, spec)
    if options.looks_like_one(word):
        return "option", word
    kinds = kinds_of(word, targets=parts.targets, environments=parts.environments)
    if kinds and word != "dynamo":
        return kinds[0], word
    head, _, rest = word.partition(":")
    if head == "dynamo" and _DYNAMO_NAME.fullmatch(rest):
        return "backend", word
    if head == "dynamo":
        raise UsageError(
            f"{spec.where}: {word!r} names no backend",
            hint="write dynamo:NAME, such as dynamo:aot_eager_decomp_partition",
        )
    raise UsageError(
        f"{spec.where}: {word!r} is not a backend, precision, target, environment or option",
        why=f"it is a part of {spec.text!r}" if word != spec.text else "",
        hint=f"did you mean {_SHORT_PRECISIONS[word.lower()]!r}?"
        if word.lower() in _SHORT_PRECISIONS
        else nearest_hint(word, parts.words(), what="part"),
    )


def _user_backend(word: str, spec: SpecText) -> str:
    path_text, colon, function = word.rpartition(":")
    if not colon or _FUNCTION.fullmatch(function) is None:
        raise UsageError(
            f"{spec.where}: {word!r} does not name a function of the file",
            hint=f"write {word.rstrip(':')}:FUNCTION",
        )
    path = spec.folder / Path(path_text).expanduser()
    if not path.is_file():
        raise UsageError(
            f"{spec.where}: no such file: {path_text!r}",
            why=f"looked for {path}",
            hint="write a custom backend as FILE.py:FUNCTION",
        )
    return f"{path.resolve()}:{function}"
