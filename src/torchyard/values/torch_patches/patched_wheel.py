"""Compile edited sources of a torch release against its installed package, without building torch.

The result takes the place of `libtorch_cpu.so` in a copy of the package and needs the released library under
another name. The dynamic linker finds the functions of the edited files in it first, and all others in the
released library; those that it does not export are called at the address that its symbol table states. So that only
the edits differ, both sides of a comparison are made in this way.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import platform
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.study import Target
from torchyard.errors import MissingTool, StepFailed, UsageError, WorkerFailed
from torchyard.process.programs import capture
from torchyard.values.torch_patches.native_source import blanked
from torchyard.values.torch_patches.patched_build import (
    compile_failed,
    copied_package,
    patched_target,
)

_LIBRARY: Final = "libtorch_cpu.so"
_RELEASED: Final = "libtorch_cpu_released.so"
_FACTS: Final = (
    "import json, torch; print(json.dumps([torch.__version__, torch.__path__[0], "
    "torch.__config__.show(), torch._C._GLIBCXX_USE_CXX11_ABI]))"
)
_REGISTRATION: Final = re.compile(r"\b(?:TORCH_LIBRARY|C10_REGISTER|C10_DEFINE)\w*\s*\(")
"""What may happen only once in a process."""
_OMITTED: Final = (
    *("-W", "-fdiagnostics"),
    # The package has no headers of these libraries, which only special cases use.
    *("-DUSE_FBGEMM", "-DUSE_PYTORCH_QNNPACK", "-DUSE_XNNPACK", "-DUSE_KINETO"),
)
_CALLS: Final = {
    "x86_64": """
    movq {base}@GOTPCREL(%rip), %r11
    leaq {distance}(%r11), %r11
    jmp *%r11
""",
    "aarch64": """
    adrp x16, :got:{base}
    ldr x16, [x16, :got_lo12:{base}]
    ldr x17, ={distance}
    add x16, x16, x17
    br x16
    .ltorg
""",
}
"""Continue in a function at a distance from an exported one."""
_CAPABILITIES: Final = ("AVX2", "AVX512", "SVE256", "VSX", "ZVECTOR")


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """How an installed torch was compiled."""

    version: str
    package: Path
    settings: str
    """As `torch.__config__.show()` prints them."""
    new_abi: bool


class NotReplaceable(StepFailed):
    """A file that cannot be compiled apart from the released library."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"{file} {reason}",
            hint="build torch: `torchyard build pytorch`, then sweep that build",
        )
        self.file = file


class PatchedWheel:
    """An installed torch for CPU code on Linux, and the source tree of its release."""

    def __init__(
        self, python: str, tree: Path, folder: Path, *, variables: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.tree, self.patches_folder = tree.resolve(), folder.resolve()
        self.target = Target(name="torch", python=python, variables=variables)
        self._facts = self._read_facts()
        self.name = f"torch {self._facts.version}"
        self._check_tree()
        self._compiler = os.environ.get("CXX", "c++")

    @functools.cached_property
    def _version(self) -> str:
        try:
            result = capture([*shlex.split(self._compiler), "--version"])
        except OSError as error:
            raise MissingTool(
                f"the C++ compiler {self._compiler} cannot be started: {error.strerror}",
                hint="install a C++ compiler, or set CXX",
            ) from error
        return (result.stdout.splitlines() or [self._compiler])[0]

    @property
    def method(self) -> str:
        """Say how both libraries are made, for readers of the results."""
        return (
            f"Both sides are the installed torch {self._facts.version} with the files of the patches "
            f"compiled here, unchanged and patched, by {self._version} and the options of the release."
        )

    def unchanged(
        self, files: Sequence[str], folder: Path, *, say: Callable[[str], None]
    ) -> Target:
        """Return a target with these files compiled as they are."""
        texts = {
            name: (self.tree / name).read_bytes().decode("utf-8", "surrogateescape")
            for name in files
        }
        return self._target("unchanged", texts, folder / "unchanged", say)

    def build(
        self, sources: Mapping[str, str], folder: Path, *, say: Callable[[str], None]
    ) -> Target:
        """Compile edited files, given by their path in the tree, and return the patched target."""
        return self._target("patched", sources, folder, say)

    def _target(
        self, name: str, sources: Mapping[str, str], folder: Path, say: Callable[[str], None]
    ) -> Target:
        folder.mkdir(parents=True, exist_ok=True)
        objects: dict[str, Path] = {}
        flags = self._flags()
        for number, (file, text) in enumerate(sorted(sources.items()), start=1):
            if _REGISTRATION.search(blanked(text)):
                raise NotReplaceable(
                    file, "registers operators, which is possible only once in a process"
                )
            say(f"compiling {file}, {name} ({number} of {len(sources)})")
            objects[file] = self._compiled(file, text, flags, folder)
        library = self._linked(list(objects.values()), folder)
        say("copying the package of torch")
        package = copied_package(self._facts.package, folder)
        released = package / "torch" / "lib" / _LIBRARY
        released.rename(released.with_name(_RELEASED))
        shutil.copy2(library, released)
        # Libraries of torch find those of CUDA by paths relative to their own.
        site = self._facts.package.parent
        for beside in {
            *(lib.parent for lib in site.glob("*/lib")),
            *(lib.parents[1] for lib in site.glob("*/*/lib")),
        } - {self._facts.package}:
            (package / beside.name).symlink_to(beside)
        target = patched_target(self.target, package, folder, name)
        self._check_import(target, objects)
        return target

    def _read_facts(self) -> _Facts:
        python = self.target.python
        variables = {**os.environ, **dict(self.target.variables)}
        result = capture([python, "-c", _FACTS], variables=variables, folder="/")
        if result.returncode:
            raise WorkerFailed(f"{python}: torch cannot be imported: {result.stderr[-300:]}")
        version, package, settings, new_abi = json.loads(result.stdout.splitlines()[-1])
        facts = _Facts(
            version=version, package=Path(package), settings=settings, new_abi=bool(new_abi)
        )
        for path in (facts.package / "lib" / _LIBRARY, facts.package / "include" / "ATen"):
            if not path.exists():
                raise UsageError(
                    f"{python}: {path} does not exist",
                    hint="patches need an official package of torch for Linux",
                )
        return facts

    def _check_tree(self) -> None:
        file = self.tree / "version.txt"
        version = file.read_text().strip() if file.is_file() else ""
        release = self._facts.version.partition("+")[0]
        if not version or not (self.tree / "aten" / "src" / "ATen" / "native").is_dir():
            raise UsageError(f"--source: {self.tree} is no source tree of PyTorch")
        if version != release:
            raise UsageError(
                f"--source: the sources are of version {version}, and the sweep is of torch {release}",
                hint=f"give the sources of release {release}",
            )

    def _flags(self) -> list[str]:
        settings = self._facts.settings
        match = re.search(r"CXX_FLAGS=(.*?), [A-Z_]+=", settings)
        if match is None:
            raise StepFailed(
                f"{self.name} does not state how it was compiled",
                hint="build torch: `torchyard build pytorch`, then sweep that build",
            )
        flags = [word for word in shlex.split(match[1]) if not word.startswith(_OMITTED)]
        standard = re.search(r"C\+\+ Version: (\d{4})", settings)
        flags += ["-w", "-O3", "-DNDEBUG", "-fPIC", "-DAT_PER_OPERATOR_HEADERS"]
        flags += [f"-std=gnu++{standard[1][2:] if standard else '17'}"]
        flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(self._facts.new_abi)}"]
        if "OpenMP" in settings:
            flags.append("-fopenmp")
        # Tables of kernels have one entry for each instruction set that the library was compiled for.
        with (self._facts.package / "lib" / _LIBRARY).open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            for name in _CAPABILITIES:
                symbol = rb"DispatchStubI[^\0]*E%d%sE\0" % (len(name), name.encode())
                if re.search(symbol, data):
                    flags.append(f"-DHAVE_{name}_CPU_DEFINITION")
        return flags

    def _compiled(self, file: str, text: str, flags: Sequence[str], folder: Path) -> Path:
        """Compile a file unless an earlier run did, with the same text, compiler and options."""
        original = self.tree / file
        command = [
            *(*shlex.split(self._compiler), *flags, "-iquote", str(original.parent)),
            *("-I", str(self._facts.package / "include")),
            *("-I", str(self.tree / "aten" / "src"), "-I", str(self.tree)),
        ]
        data = text.encode("utf-8", errors="surrogateescape")
        what = "\0".join([self._version, file, *command]).encode()
        key = hashlib.sha256(what + b"\0" + data).hexdigest()[:16]
        source = self.patches_folder / "objects" / key / original.name
        result = source.with_suffix(".o")
        if not result.is_file():
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_bytes(data)
            part = source.with_suffix(".part")
            self._run([*command, "-c", str(source), "-o", str(part)], folder, what=file)
            part.replace(result)
        return result

    def _linked(self, objects: Sequence[Path], folder: Path) -> Path:
        """Link the objects into a library that needs the released one, whose functions are found at run time."""
        stub = folder / "stub" / _RELEASED
        stub.parent.mkdir(exist_ok=True)
        library = folder / _LIBRARY
        shared = [*shlex.split(self._compiler), "-shared", "-fPIC", "-nostartfiles"]
        self._run([*shared, f"-Wl,-soname,{_RELEASED}", "-o", str(stub)], folder, what=_RELEASED)
        calls = folder / "calls.s"
        calls.write_text(self._calls(objects), encoding="utf-8")
        command = [
            *shlex.split(self._compiler),
            *("-shared", f"-Wl,-soname,{_LIBRARY}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"),
            *(*map(str, objects), str(calls)),
            *("-L", str(stub.parent), f"-l:{_RELEASED}", "-o", str(library)),
        ]
        self._run(command, folder, what=_LIBRARY)
        return library

    def _calls(self, objects: Sequence[Path]) -> str:
        """Return assembly for the functions that the objects need and the released library does not export."""
        released = self._facts.package / "lib" / _LIBRARY
        replaced = {name for name, _, _ in _symbols("--defined-only", *objects)}
        exported = {
            name: address for name, kind, address in _symbols("-D", released) if kind == "T"
        }
        needed = {name for name, _, _ in _symbols("-u", *objects)} - set(exported)
        hidden = [
            (name, address)
            for name, kind, address in _symbols(released)
            if kind == "t" and name in needed
        ]
        count = Counter(name for name, _ in hidden)
        # Other libraries may have functions of the same name, but not in a namespace of torch.
        bases = sorted(
            set(exported) - replaced, key=lambda name: (not name.startswith("_ZN2at"), name)
        )
        call = _CALLS.get(platform.machine(), "")
        text = ['.section .note.GNU-stack,"",%progbits', ".text"]
        for name, address in hidden if bases and call else ():
            if count[name] > 1:
                continue  # functions of different files
            distance = address - exported[bases[0]]
            text += [f".globl {name}", f".hidden {name}", f".type {name}, %function", f"{name}:"]
            text.append(call.format(base=bases[0], distance=distance))
        return "\n".join(text) + "\n"

    def _check_import(self, target: Target, objects: Mapping[str, Path]) -> None:
        variables = {**os.environ, **dict(target.variables), "LD_BIND_NOW": "1"}
        command = [target.python, "-c", "import torch; torch.zeros(4).mul_(2).sum().item()"]
        result = capture(command, variables=variables, folder="/")
        if result.returncode:
            missing = re.search(r"undefined symbol: (\w+)", result.stderr)
            for file, compiled in objects.items():
                if missing and missing[1] in {name for name, _, _ in _symbols("-u", compiled)}:
                    raise NotReplaceable(
                        file, f"needs {missing[1]}, which the released library does not have"
                    )
            raise StepFailed(
                f"{self.name}: the {target.name} library cannot be loaded",
                why=result.stderr.strip()[-500:],
                hint="build torch: `torchyard build pytorch`, then sweep that build",
            )

    def _run(self, command: list[str], folder: Path, *, what: str) -> None:
        result = capture(command, folder=str(folder))
        log = folder / "compile.log"
        with log.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"$ {shlex.join(command)}\n{result.stdout}{result.stderr}")
        if result.returncode:
            raise compile_failed(what, result.returncode, log)


def _symbols(*arguments: str | Path) -> Iterator[tuple[str, str, int]]:
    """Return name, kind and address of each symbol, as `nm` lists them."""
    for line in capture(["nm", "-P", *map(str, arguments)]).stdout.splitlines():
        name, kind, address, *_ = [*line.split(), "", ""]
        if len(kind) == 1:
            yield name.partition("@")[0], kind, int(address or "0", 16)
