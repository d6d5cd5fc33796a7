"""The text of a module that Inductor generated: its kernels, their arguments, and the calls of them.

Which arguments a kernel reads and writes follows from the names of its parameters (`in_ptr0`, `out_ptr0`, `in_out_ptr0`).
Parameters with other names (templates, kernels of the user) are taken as read and written, so that nothing is concluded
from them. Knows nothing of tensors and patterns.
"""

import ast
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

_KERNEL = re.compile(
    r"^(\w+) = async_compile\.(\w+)\((.*?)r?'''(.*?)'''", re.MULTILINE | re.DOTALL
)
_CPP_PARAMETERS = re.compile(r'extern "C"[^(]*?\bkernel\(([^)]*)\)', re.DOTALL)
_TRITON_PARAMETERS = re.compile(r"^def triton_\w+\(([^)]*)\):", re.MULTILINE | re.DOTALL)
_MUTATED = re.compile(r"'mutated_arg_names': \[([^\]]*)\]")
_OPERATORS = re.compile(r"Original ATen: \[([^\]]*)\]")
_WRITERS = ("atomic_add", "tl.atomic")
MODULE_WITHOUT_KERNELS = "it is a C++ wrapper, which calls its kernels without Python"


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    name: str
    read: bool
    written: bool
    known: bool = True
    """Whether the name tells what the kernel does with it."""
    read_back: bool = False
    """Whether the kernel reads what it wrote itself."""


class Kernel(NamedTuple):
    """A generated kernel."""

    name: str
    language: str
    """`cpp` or `triton`."""
    parameters: Tuple[Parameter, ...]


class KernelSite(NamedTuple):
    """A call of a kernel in the generated module."""

    line: int
    arguments: Tuple[str, ...]
    """Names of the buffers; empty for other expressions."""
    operators: Tuple[str, ...]
    """Source operators in the comment above the call."""


class GeneratedModule(NamedTuple):
    """Kernels by name, and their calls by line."""

    kernels: Dict[str, Kernel]
    sites: Dict[Tuple[str, int], KernelSite]
    why_not: str = ""
    """Why its kernels cannot be observed."""


def read_module(text: str) -> GeneratedModule:
    """Read the text of a generated module; raise ValueError if it is not understood."""
    kernels: Dict[str, Kernel] = {}
    for name, kind, _, code in _KERNEL.findall(text):
        kernel = _kernel(name, kind, code)
        if kernel is not None:
            kernels[name] = kernel
    if "inductor_entry_cpp" in text or "CppWrapperCodeCache" in text:
        return GeneratedModule({}, {}, MODULE_WITHOUT_KERNELS)
    return GeneratedModule(kernels, _sites(text, kernels))


def _kernel(name: str, kind: str, code: str) -> Optional[Kernel]:
    triton = kind == "triton"
    match = (_TRITON_PARAMETERS if triton else _CPP_PARAMETERS).search(code)
    if match is None:
        return None
    body = code[match.end() :]
    mutated = _MUTATED.search(code)
    names = re.findall(r"'(\w+)'", mutated.group(1)) if mutated is not None else []
    declared = [one.strip() for one in match.group(1).split(",") if one.strip()]
    if triton:
        # Constants of the launch are no arguments of the call; tensors come first.
        parameters = [_parameter(one.split(":")[0].strip(), body, names, "*") for one in declared]
    else:
        parameters = [_parameter(one.split()[-1].lstrip("*&"), body, names, one) for one in declared]
    return Kernel(name, "triton" if triton else "cpp", tuple(parameters))


def _parameter(name: str, body: str, mutated: List[str], declaration: str) -> Parameter:
    if name.startswith("in_out_ptr"):
        return Parameter(name, True, True, read_back=True)
    if name.startswith("out_ptr"):
        atomic = any(writer in body for writer in _WRITERS)
        return Parameter(name, atomic, True, read_back=atomic or _reads(name, body))
    if name.startswith("in_ptr"):
        return Parameter(name, True, name in mutated, known=name not in mutated)
    if declaration.startswith("const "):
        return Parameter(name, True, False)
    return Parameter(name, True, True, known=False, read_back=True)


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
    sites: Dict[Tuple[str, int], KernelSite] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        func: Any = node.func
        if isinstance(func, ast.Attribute) and func.attr == "run":
            func = func.value
        if isinstance(func, ast.Name) and func.id in kernels:
            arguments = tuple(_buffer(argument) for argument in node.args)
            site = KernelSite(node.lineno, arguments, _commented(lines, node.lineno))
            sites[func.id, node.lineno] = site
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
