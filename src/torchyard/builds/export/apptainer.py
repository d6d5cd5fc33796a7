"""A plan as an Apptainer definition file, with its checks as the test of the image. No I/O."""

from __future__ import annotations

import re
from typing import Final

from torchyard import __version__
from torchyard.builds.export.image import (
    Image,
    check_statements,
    conda_statements,
    freeze_statements,
    image_of,
    input_lines,
    one_step,
    package_statements,
    source_list_statements,
)
from torchyard.builds.export.model import ExportedFile, ExportFacts
from torchyard.builds.export.shell import (
    command_text,
    comment,
    exports,
    quoted,
    with_line_break,
    wrapped,
)
from torchyard.builds.plan import Plan
from torchyard.errors import UsageError

__all__ = ["export_apptainer"]

_MOST_BYTES: Final = 60 * 1024
_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_GPU_FILES: Final = {"cuda": "/dev/nvidiactl", "rocm": "/dev/kfd"}


def export_apptainer(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """One file, named after the plan."""
    image = image_of(plan, facts)
    sections = [
        _head(image),
        *_files(image),
        _section("arguments", [f"    JOBS={plan.jobs or 0}"]),
        *_post(image),
        _section("environment", _environment(image)),
        _section("runscript", [f'    exec {_program(image)} "$@"']),
        _section("test", _test(image)),
        _section("labels", _labels(image)),
        _section("help", _help(image)),
    ]
    return (ExportedFile(name=f"{plan.name}.def", text="\n".join(sections)),)


def _section(name: str, lines: list[str]) -> str:
    text = "\n".join((f"%{name}", *lines)) + "\n"
    if len(text.encode(errors="surrogateescape")) > _MOST_BYTES:
        raise UsageError(
            "a step is too long for one section of an Apptainer definition",
            why="Apptainer reads no section of more than 64 KiB",
            hint="export a script, and start it in %post",
        )
    return text


def _head(image: Image) -> str:
    name = image.plan.name
    lines = [
        f"{name}: {_names(image)}",
        "",
        f"  apptainer build {name}.sif {name}.def",
        f"  apptainer build --build-arg JOBS=2 {name}.sif {name}.def    (compile two at once)",
        "",
        "Written by Torchyard from a plan. Not the same as there: the network is not cut off in",
        "steps that do not fetch, compiles are not held back by memory, and of the checks only the",
        "import and the smoke tests are made. Needs Apptainer 1.2 or newer.",
        f"Base image: {image.base.why}",
        *input_lines(image),
    ]
    told = [f"# {comment(line)}".rstrip() for line in lines]
    return "\n".join(("Bootstrap: docker", f"From: {image.base.name}", "", *told)) + "\n"


def _files(image: Image) -> list[str]:
    lines = []
    for item in image.inputs:
        target = f"{image.plan.folder}/local/{item.name}"
        lines.append(f"    local/{item.name} {target}")
    return [_section("files", lines)] if lines else []


def _post(image: Image) -> list[str]:
    """One section for each step, each in a shell of its own so that no variable stays."""
    setup = package_statements(image.packages)
    if image.source_packages:
        setup += source_list_statements()
    if image.conda:
        setup.append(f"    # Assumed: {image.conda} can be had here; the newest release is taken.")
        setup += conda_statements(image)
    folder = quoted(image.plan.folder, one_line=True)
    jobs = ["    JOBS={{ JOBS }}", '    [ "$JOBS" != 0 ] || JOBS=$(nproc)']
    shared = exports(image.shared, one_line=True)
    start = ["    set -eu", *setup, f"    mkdir -p {folder}", *jobs, *shared]
    parts = [_section("post", with_line_break(start))]
    for step in image.plan.steps:
        title = f"    # {comment(step.name)}: {comment(step.title)}"
        parts.append(_section("post", [title, *_alone(one_step(image, step, jobs="$JOBS"))]))
    last = freeze_statements(image)
    # What only the build needed would make the image several times as large.
    remove = wrapped(command_text(("rm", "-rf", "--", *image.not_kept), one_line=True), "    ")
    return [*parts, _section("post", [*(_alone(last) if last else []), remove])]


def _alone(statements: list[str]) -> list[str]:
    return ["    (", "    set -eu", *statements, "    )"]


def _environment(image: Image) -> list[str]:
    return with_line_break(exports(image.variables, one_line=True))


def _test(image: Image) -> list[str]:
    lines = ["    set -eu"]
    if image.gpu:
        device = _GPU_FILES[image.gpu]
        lines.append(
            f"    [ -e {device} ] || {{ echo 'no GPU here: nothing was tested'; exit 0; }}"
        )
    return [*lines, *check_statements(image, one_line=True), "    echo good"]


def _labels(image: Image) -> list[str]:
    labels = {"org.opencontainers.image.title": image.plan.name, "torchyard.version": __version__}
    for part in image.plan.components:
        key = _LABEL.sub("-", part.name)
        labels[f"torchyard.component.{key}"] = f"{part.recipe.version} {part.recipe.variant}"
    return [f"    {key} {comment(value).strip()}" for key, value in labels.items()]


def _help(image: Image) -> list[str]:
    plan = image.plan
    lines = [f"{plan.name}: {_names(image)}", f"Everything is below {plan.folder}:"]
    lines += [f"  {path}" for path in image.kept]
    return [f"    {comment(line)}" for line in lines]


def _names(image: Image) -> str:
    return ", ".join(f"{part.name} {part.recipe.version}".strip() for part in image.plan.components)


def _program(image: Image) -> str:
    return quoted(image.python, one_line=True) if image.python else "/bin/sh"
