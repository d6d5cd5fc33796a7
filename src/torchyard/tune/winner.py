"""The winner of a race in usable form: an environment file, a shell line, a variant of a study.

Values are quoted for their destination: names and paths can come from a user's file.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import tomli_w

from torchyard.core.cpu_lists import cpu_list
from torchyard.core.study import Environment, Variant
from torchyard.machine.system.cores import cores_of
from torchyard.tune.model import Contender

_INTEROP = "TORCHYARD_INTEROP_THREADS"
"""Understood by the Torchyard worker only; programs use `Choice.code`."""


def is_set_outside(winner: Contender, default: Variant) -> bool:
    """Whether any setting must be made when the program starts."""
    environment = winner.variant(default).environment
    places = environment.cores or environment.memory or environment.instances > 1
    return bool(places or variables_of(winner, default))


def variables_of(winner: Contender, default: Variant) -> dict[str, str]:
    """Return the environment variables of the winner, including preloaded libraries and threads."""
    environment = winner.variant(default).environment
    variables = {key: value for key, value in environment.variables if key != _INTEROP}
    threads = environment.threads
    if environment.instances > 1:
        threads = threads or len(cores_of(environment)[0])
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    if environment.preload:
        variables["LD_PRELOAD"] = ":".join(environment.preload)
    return dict(sorted(variables.items()))


def environment_file(winner: Contender, default: Variant) -> str:
    """Return `NAME=value` lines for a POSIX shell: `set -a; . FILE; set +a`."""
    lines = [f"# {choice.name}: {choice.about}" for choice in winner.choices]
    lines += [f"{key}={shlex.quote(value)}" for key, value in variables_of(winner, default).items()]
    environment = winner.variant(default).environment
    starts = [shlex.join(_start(environment, part)) for part in range(environment.instances)]
    lines += [f"# start it with: {start} PROGRAM" for start in starts if start]
    lines += [f"# in the program: {line}" for line in code_lines(winner)]
    return "\n".join(" ".join(line.splitlines()) for line in lines) + "\n"


def shell_line(winner: Contender, default: Variant, program: Sequence[str]) -> str:
    """Return the shell command that runs the program with the variables, once per instance."""
    variables = [
        f"{key}={shlex.quote(value)}" for key, value in variables_of(winner, default).items()
    ]
    environment = winner.variant(default).environment
    lines = [
        " ".join([*variables, shlex.join([*_start(environment, part), *program])])
        for part in range(environment.instances)
    ]
    return lines[0] if len(lines) == 1 else " & ".join(lines) + " & wait"


def _start(environment: Environment, part: int) -> list[str]:
    """Return the command prefix that pins an instance to its cores and memory."""
    placed = environment.instances > 1 or environment.cores
    cores = cpu_list(cores_of(environment)[part]) if placed else ""
    if environment.memory:
        policy, _, nodes = environment.memory.partition(":")
        binding = {"bind": "--membind", "interleave": "--interleave"}[policy]
        return ["numactl", *([f"--physcpubind={cores}"] if cores else []), f"{binding}={nodes}"]
    return ["taskset", "-c", cores] if cores else []


def code_lines(winner: Contender) -> list[str]:
    """Return the code that the program itself must contain."""
    return [choice.code for choice in winner.choices if choice.code]


def study_text(winner: Contender, default: Variant) -> str:
    """Return a study file that compares the default with the winner."""
    variant = winner.variant(default)
    environment = variant.environment
    parts = [variant.backend]
    if variant.precision != "float32":
        parts.append(variant.precision)
    if environment != default.environment:
        parts.append("tuned")
    for key, value in variant.options:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        parts.append(key if value is True else f"{key}={text}")
    study: dict[str, Any] = {"baseline": default.backend, "candidates": ["+".join(parts)]}
    if environment != default.environment:
        tuned = {
            "threads": environment.threads,
            "cores": environment.cores,
            "memory": environment.memory,
            "instances": environment.instances if environment.instances > 1 else None,
            "preload": list(environment.preload),
            "variables": dict(environment.variables),
        }
        study["environments"] = {"tuned": {key: value for key, value in tuned.items() if value}}
    return tomli_w.dumps(study)
