"""The text of a module that Inductor generated: its kernels, their arguments, and the calls of them.

Which arguments a kernel reads and writes follows from the names of its parameters (`in_ptr0`, `out_ptr0`, `in_out_ptr0`).
Parameters with other names (templates, kernels of the user) are taken as read and written, so that nothing is concluded
from them. Independent of tensors and patterns.
"""

import ast
import re
from typing import Any, Dict, FrozenSet, List, NamedTuple, Tuple

_DEFINITION = re.compile(r"^(\w+) = async_compile\.\w+\(", re.MULTILINE)
_KERNEL = re.compile(
    r"^(\w+) = async_compile\.(\w+)\([^\n]*?r?'''(.*?)'''", re.MULTILINE | re.DOTALL
)
_CPP_PARAMETERS = re.compile(r'extern "C"[^(]*?\bkernel\(([^)]*)\)', re.DOTALL)
_TRITON_PARAMETERS = re.compile(r"^def triton_\w+\(([^)]*)\):", re.MULTILINE | re.DOTALL)
_MUTATED = re.compile(r"'mutated_arg_names': \[([^\]]*)\]")
_OPERATORS = re.compile(r"Original ATen: \[([^\]]*)\]")
_BUFFER = "buf"
"""Names of the compiler's own buffers begin with it; others are memory of the program."""
_PARAMETERS = {"cpp_pybinding": _CPP_PARAMETERS, "triton": _TRITON_PARAMETERS}
_ATOMIC = ("atomic_add", "tl.atomic")
MODULE_WITHOUT_KERNELS = "it is a C++ wrapper, which calls its kernels without Python"
KERNELS_OF_ADDRESSES = "this version of torch passes addresses to its kernels"


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    name: str
    read: bool
    written: bool
    known: bool = True
    """Whether the name tells what the kernel does with it."""
    read_back: bool = False
    """Whether the kernel reads what it wrote itself."""


UNKNOWN = Parameter("", True, True, known=False, read_back=True)


class Kernel(NamedTuple):
    """A generated kernel."""

    name: str
    parameters: Tuple[Parameter, ...] = ()
    """Empty for a kernel whose text is not understood, such as that of a user."""

    def parameter(self, position: int) -> Parameter:
        """Return a parameter; `UNKNOWN` beyond those that were read."""
        return self.parameters[position] if position < len(self.parameters) else UNKNOWN


class KernelSite(NamedTuple):
    """A call of a kernel in the generated module."""

    line: int
    arguments: Tuple[str, ...]
    """Names of the buffers; empty for other expressions."""
    operators: Tuple[str, ...]
    """Source operators in the comment above the call."""
    new: FrozenSet[str]
    """Buffers of the compiler that no earlier line uses: memory without values, also where it is reused."""


class GeneratedModule(NamedTuple):
    """Kernels by name, and their calls by line."""

    kernels: Dict[str, Kernel]
    sites: Dict[Tuple[str, int], KernelSite]
    why_not: str = ""
    """Why its kernels cannot be observed."""


def read_module(text: str) -> GeneratedModule:
    """Read the text of a generated module; raise ValueError if it is not understood."""
    kernels = {name: Kernel(name) for name in _DEFINITION.findall(text)}
    for name, kind, code in _KERNEL.findall(text):
        kernels[name] = Kernel(name, _parameters(kind, code))
        if kind == "cpp":
            return GeneratedModule({}, {}, KERNELS_OF_ADDRESSES)
    if "inductor_entry_cpp" in text or "CppWrapperCodeCache" in text:
        return GeneratedModule({}, {}, MODULE_WITHOUT_KERNELS)
    return GeneratedModule(kernels, _sites(text, kernels))


def _parameters(kind: str, code: str) -> Tuple[Parameter, ...]:
    """Return what a kernel does with its parameters; nothing if the kernel is not Inductor's own."""
    match = _PARAMETERS[kind].search(code) if kind in _PARAMETERS else None
    if match is None or "custom_kernel=True" in code:
        return ()
    body = code[match.end() :]
    declared = [one.strip() for one in match.group(1).split(",") if one.strip()]
    if kind == "triton":
        mutated = _MUTATED.search(code)
        if mutated is None:
            return ()
        written = re.findall(r"'(\w+)'", mutated.group(1))
        names = [one.split(":")[0].strip() for one in declared]
        return tuple(_parameter(name, body, read_only=name not in written) for name in names)
    return tuple(
        _parameter(one.split()[-1].lstrip("*&"), body, read_only=one.startswith("const "))
        for one in declared
    )


def _parameter(name: str, body: str, *, read_only: bool) -> Parameter:
    """Return a parameter by its name; others than those of Inductor are written unless they are read-only."""
    if name.startswith("in_out_ptr"):
        return Parameter(name, True, True, read_back=True)
    if name.startswith("out_ptr"):
        atomic = any(writer in body for writer in _ATOMIC)
        return Parameter(name, atomic, True, read_back=atomic or _reads(name, body))
    return Parameter(name, True, False) if read_only else UNKNOWN._replace(name=name)


def _reads(name: str, body: str) -> bool:
    """Return whether a kernel uses an output in any other way than to store to it."""
    uses = len(re.findall(r"\b%s\b" % name, body))
    stores = len(re.findall(r"store\(\s*%s\b" % name, body))
    stores += len(re.findall(r"^\s*%s\[[^\n]*?\] = " % name, body, re.MULTILINE))
    return uses > stores


def _sites(text: str, kernels: Dict[str, Kernel]) -> Dict[Tuple[str, int], KernelSite]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError("the generated module does not parse: %s" % error) from error
    lines = text.split("\n")
    first_uses: Dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            first_uses[node.id] = min(node.lineno, first_uses.get(node.id, node.lineno))
    sites: Dict[Tuple[str, int], KernelSite] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        func: Any = node.func
        if isinstance(func, ast.Attribute) and func.attr == "run":
            func = func.value
        if isinstance(func, ast.Name) and func.id in kernels:
            arguments = tuple(_buffer(argument) for argument in node.args)
            new = frozenset(
                name
                for name in arguments
                if name.startswith(_BUFFER) and first_uses[name] == node.lineno
            )
            operators = _commented(lines, node.lineno)
            sites[func.id, node.lineno] = KernelSite(node.lineno, arguments, operators, new)
    return sites


def _buffer(argument: Any) -> str:
    """Return the name of a buffer, also of a view of it."""
    while isinstance(argument, ast.Call) and argument.args:
        argument = argument.args[0]
    return argument.id if isinstance(argument, ast.Name) else ""


def _commented(lines: List[str], line: int) -> Tuple[str, ...]:
    """Return the operators that the comment above a call names."""
    for text in reversed(lines[max(0, line - 40) : line - 1]):
        stripped = text.strip()
        match = _OPERATORS.search(stripped)
        if match is not None and stripped.startswith("#"):
            names = [name.strip() for name in match.group(1).split(",") if name.strip()]
            return tuple(name.replace("aten.", "", 1) for name in names)
        if not stripped.startswith(("#", "stream")) and "empty_strided" not in stripped:
            break
    return ()
