"""Compile edited sources of a finished build and link them into a second library; the build stays as it is.

Commands are those that CMake wrote for the build, in its environment and root folder, with other paths: a
source file becomes an object of its own, and the library is linked with it instead of the original object.
The package of torch is copied by hard links, with the new library in it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.builds.build_folders import BuildFolder, BuildsDirectory
from torchyard.builds.record import BuildRecord, find_build
from torchyard.builds.running.steps import CommandRun
from torchyard.builds.sandbox import Sandbox
from torchyard.core.study import Target
from torchyard.errors import ResultsDamaged, StepFailed, UsageError
from torchyard.process.programs import capture

_LIBRARY: Final = re.compile(
    r"^build (?P<output>lib/lib\S+\.so\S*): CXX_SHARED_LIBRARY\S* (?P<inputs>.*)$", re.MULTILINE
)
_RUN_PATH: Final = re.compile(r"-Wl,-rpath,\S*")
_ORIGIN: Final = "-Wl,-rpath,$ORIGIN"
_LOCATION: Final = "import torch; print(torch.__path__[0])"


@dataclass(frozen=True, kw_only=True)
class _Compile:
    """How CMake compiles one file."""

    command: tuple[str, ...]
    folder: str
    output: str


class PatchedBuild:
    """A finished build of torch, and a folder for a patched copy of its library."""

    def __init__(self, name: str, *, home: BuildsDirectory | None = None) -> None:
        entry = find_build(name, home or BuildsDirectory.default())
        if entry.record is None or not entry.record.python:
            raise UsageError(
                f"the build {name!r} has no interpreter", hint="give a finished build of PyTorch"
            )
        self.name = entry.name
        self.record: BuildRecord = entry.record
        self._folder = BuildFolder(folder=entry.folder)
        self.tree = self._tree()
        self._build = self.tree / "build"
        self._variables = self._step_variables()
        self._compiles = self._read_compiles()

    @property
    def target(self) -> Target:
        """The unchanged build."""
        return Target(
            name=self.name,
            python=self.record.python,
            variables=tuple(self.record.variables.items()),
        )

    @property
    def patches_folder(self) -> Path:
        """Folder of patched libraries; programs in the build's root folder can read it."""
        return self._folder.folder / "patched"

    @property
    def method(self) -> str:
        """Say how the patched library is made, for readers of the results."""
        return f"Compared with the unchanged library of the build {self.name}."

    def unchanged(
        self, _files: Iterable[str], _folder: Path, *, say: Callable[[str], None]
    ) -> Target:
        """Return the build, whose compiler and options are those of the patched files."""
        say(f"comparing with the build {self.name}")
        return self.target

    def build(
        self, sources: Mapping[str, str], folder: Path, *, say: Callable[[str], None]
    ) -> Target:
        """Compile edited files, given by their path in the tree, and return the patched target.

        A file with the same text as before is not recompiled.
        """
        folder.mkdir(parents=True, exist_ok=True)
        objects: dict[str, str] = {}
        for number, (name, text) in enumerate(sorted(sources.items()), start=1):
            compiled = self._compiled(name)
            say(f"compiling {name} ({number} of {len(sources)})")
            objects[compiled.output] = str(self._compile(compiled, name, text, folder))
        library = self._link(objects, folder, say)
        package = self._package(library, folder, say)
        return patched_target(self.target, package, folder)

    def run(
        self,
        command: list[str],
        *,
        log: Path,
        folder: str,
        variables: Mapping[str, str] | None = None,
    ) -> int:
        """Run a program in the environment and root folder of the build, without network."""
        root = self.record.root
        sandbox = Sandbox(root=root, network=False, writable=self._folder.shown_in(root))
        environment = {**self._variables, **(variables or {})}
        argv, full = sandbox.command(command, folder=folder, variables=environment)
        running = CommandRun(argv, folder="" if argv[0] != command[0] else folder, environment=full)
        with log.open("ab") as file:
            file.write(f"$ {shlex.join(command)}\n".encode(errors="backslashreplace"))
            return running.wait(file, lambda _: None)

    def _tree(self) -> Path:
        for component in self.record.components:
            tree = self._folder.tree(component.name)
            if (tree / "aten" / "src" / "ATen" / "native").is_dir():
                return tree
        raise UsageError(
            f"the build {self.name!r} has no source tree of PyTorch",
            why="it was cleaned, or it is a build of something else",
            hint=f"torchyard build {self.record.recipe.name} --name {self.name}",
        )

    def _step_variables(self) -> dict[str, str]:
        plan = _read_json(self._folder.plan_file)
        for step in plan["steps"]:
            if step["name"] == f"{self.tree.name}/build":
                return dict(step["variables"])
        raise ResultsDamaged(f"{self._folder.plan_file} has no step that compiles")

    def _read_compiles(self) -> dict[str, _Compile]:
        path = self._build / "compile_commands.json"
        if not path.is_file():
            raise UsageError(
                f"{path} does not exist",
                why="the compiled files of the build were removed",
                hint=f"torchyard build {self.record.recipe.name} --name {self.name} --force",
            )
        compiles = {}
        for entry in _read_json(path):
            words = tuple(shlex.split(entry["command"]))
            output = words[words.index("-o") + 1] if "-o" in words else ""
            compiles[entry["file"]] = _Compile(
                command=words, folder=entry["directory"], output=output
            )
        return compiles

    def _compiled(self, name: str) -> _Compile:
        # Kernels are compiled from copies in the build folder, once per instruction set.
        compiled = self._compiles.get(str(self.tree / name))
        if compiled is None:
            raise StepFailed(
                f"{name} is not compiled by this build on its own",
                hint="leave its patch out: --finding selects one",
            )
        return compiled

    def _compile(self, compiled: _Compile, name: str, text: str, folder: Path) -> Path:
        source = folder / "source" / name
        result = folder / "objects" / f"{name}.o"
        data = text.encode("utf-8", errors="surrogateescape")
        if result.is_file() and source.is_file() and source.read_bytes() == data:
            return result
        result.unlink(missing_ok=True)  # it belongs to another text
        source.parent.mkdir(parents=True, exist_ok=True)
        result.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(data)
        original, part = str(self.tree / name), result.with_suffix(".part")
        replaced = {original: str(source), compiled.output: str(part)}
        command = [replaced.get(word, word) for word in compiled.command]
        command[1:1] = ["-iquote", str(Path(original).parent)]
        self._checked(command, folder / "compile.log", folder=compiled.folder, what=name)
        part.replace(result)
        return result

    def _link(self, objects: Mapping[str, str], folder: Path, say: Callable[[str], None]) -> Path:
        """Link the library that contains the objects; return it."""
        text = (self._build / "build.ninja").read_text(encoding="utf-8", errors="replace")
        outputs = [
            match["output"]
            for match in _LIBRARY.finditer(text)
            if not set(objects).isdisjoint(match["inputs"].split())
        ]
        if len(outputs) != 1:
            raise StepFailed(f"the patched files are linked into {len(outputs)} libraries, not one")
        library = folder / Path(outputs[0]).name
        command = self._link_command(outputs[0])
        replaced = {**objects, outputs[0]: str(library) + ".part"}
        command = [replaced.get(word, word) for word in command]
        # As in an installed package: libraries are found beside each other.
        command = [_RUN_PATH.sub(_ORIGIN, word) for word in command]
        say(f"linking {library.name}")
        self._checked(command, folder / "link.log", folder=str(self._build), what=library.name)
        Path(str(library) + ".part").replace(library)
        return library

    def _link_command(self, output: str) -> list[str]:
        listing = self.patches_folder / "link-command.txt"
        log = self.patches_folder / "link-command.log"
        log.unlink(missing_ok=True)
        script = f"ninja -t commands -s {shlex.quote(output)} > {shlex.quote(str(listing))}"
        self._checked(["sh", "-c", script], log, folder=str(self._build), what=output)
        words = shlex.split(listing.read_text(encoding="utf-8"))
        # CMake writes `: && c++ ... && :`, with steps before and after the linker where needed.
        parts = " ".join(shlex.quote(word) if word != "&&" else "\0" for word in words).split("\0")
        links = [shlex.split(part) for part in parts if output in shlex.split(part)]
        if len(links) != 1:
            raise StepFailed(f"the command that links {output} is not understood", log=str(log))
        return links[0]

    def _package(self, library: Path, folder: Path, say: Callable[[str], None]) -> Path:
        """Return a copy of the installed package with the library in it."""
        installed = self._installed()
        say("copying the package of torch")
        packages = copied_package(installed, folder)
        package = packages / "torch"
        prefix = library.name.partition(".so")[0] + ".so"
        originals = [
            path
            for path in (package / "lib").glob(prefix + "*")
            if path.is_file() and not path.is_symlink()
        ]
        if not originals:
            raise StepFailed(f"{installed} has no {prefix}")
        for original in originals:
            original.unlink()
            shutil.copy2(library, original)
        return packages

    def _installed(self) -> Path:
        target = self.target
        variables = {**os.environ, **dict(target.variables), "PYTHONPATH": ""}
        result = capture([target.python, "-c", _LOCATION], variables=variables, folder="/")
        if result.returncode:
            raise StepFailed(f"{self.name}: torch cannot be imported", why=result.stderr[-500:])
        return Path(result.stdout.strip().splitlines()[-1])

    def _checked(self, command: list[str], log: Path, *, folder: str, what: str) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        code = self.run(command, log=log, folder=folder)
        if code:
            raise compile_failed(what, code, log)


def copied_package(installed: Path, folder: Path) -> Path:
    """Copy the package of torch by hard links, and return the folder to put on PYTHONPATH."""
    packages = folder / "package"
    shutil.rmtree(packages, ignore_errors=True)
    shutil.copytree(installed, packages / "torch", symlinks=True, copy_function=_link)
    return packages


def patched_target(original: Target, packages: Path, folder: Path, name: str = "patched") -> Target:
    """Return a target with other packages; its interpreter is a script, for use with `--target`."""
    script = folder / "bin" / "python"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f"#!/bin/sh\n# {original.name}, {name}.\n"
        f"PYTHONPATH={shlex.quote(str(packages))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        f'export PYTHONPATH\nexec {shlex.quote(original.python)} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return Target(name=name, python=str(script), variables=original.variables)


def compile_failed(what: str, code: int, log: Path) -> StepFailed:
    """Return the error of a compiler or linker, with the last errors of its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines
    return StepFailed(
        f"{what}: the command ended with {code}",
        why="\n".join(errors[-5:]),
        hint="the log has the whole output",
        log=str(log),
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResultsDamaged(f"{path} cannot be read: {error}") from error


def _link(source: str, copy: str) -> str:
    """Make a hard link, or a copy where the file system has none."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)
    return copy
