"""From a finding of a sweep to an edit of torch's source.

Two kinds of edits: memory that is created filled is created uninitialized (`at::zeros_like` becomes
`at::empty_like`), and a fill at the top level of a function is removed. The finding says that the write is
wasted for the inputs of its case. The source must say nothing against it for other inputs: the write is not
in a condition, and the function does not return early after it. Everything else is left to the checks.
"""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Final

from torchyard.values.operator_sweep.model import NativeCall, OperatorCase, OperatorFinding
from torchyard.values.torch_patches.model import FoundIn, NotProposed, SourceEdit, TorchPatch
from torchyard.values.torch_patches.native_source import (
    Call,
    Function,
    blanked,
    called_names,
    calls_in,
    functions_named,
    is_unconditional,
    returns_early,
    source_name,
)

DEAD: Final = "dead initialisation"
REDUNDANT: Final = "redundant write"
CERTAIN: Final = ("proven", "tested")
UNINITIALIZED: Final = {
    "new_ones": "new_empty",
    "new_zeros": "new_empty",
    "ones": "empty",
    "ones_like": "empty_like",
    "zeros": "empty",
    "zeros_like": "empty_like",
}
_SYMBOLIC: Final = "_symint"
_OPERATORS_FOLDER: Final = Path("aten", "src", "ATen")
_OTHER_DEVICES: Final = frozenset(
    {"cuda", "hip", "miopen", "mps", "cudnn", "vulkan", "metal", "xpu"}
)
_OFFSET: Final = re.compile(r"(?P<library>.+)\+(?P<offset>0x[0-9a-f]+)")
_MOST_CALLS: Final = 2
"""Levels of functions in the same file that are followed: the compiler has inlined them."""
_INCLUDE: Final = re.compile(r"^#include <ATen/ops/(\w+)\.h>\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class _Site:
    """A call in the source tree."""

    path: Path
    clean: str
    function: Function
    call: Call


@dataclass(kw_only=True)
class SourceTree:
    """The C++ sources of torch's operators."""

    root: Path
    _texts: dict[Path, str] = field(default_factory=dict)
    _clean: dict[Path, str] = field(default_factory=dict)

    def text(self, path: Path) -> str:
        """Return the text of a file."""
        self._read()
        return self._texts[path]

    def clean(self, path: Path) -> str:
        """Return the text of a file without comments and literals."""
        if path not in self._clean:
            self._clean[path] = blanked(self.text(path))
        return self._clean[path]

    def definitions(self, name: str) -> list[tuple[Path, Function]]:
        """Return the definitions of a function in all files."""
        self._read()
        return [
            (path, function)
            for path, text in self._texts.items()
            if name in text
            for function in functions_named(self.clean(path), name)
        ]

    def _read(self) -> None:
        if self._texts:
            return
        for path in sorted((self.root / _OPERATORS_FOLDER).rglob("*.cpp")):
            relative = path.relative_to(self.root)
            if _OTHER_DEVICES.isdisjoint(relative.parts):
                # Offsets are those of the decoded text; it is encoded in the same way.
                self._texts[relative] = path.read_text(encoding="utf-8", errors="surrogateescape")


def patches_of(cases: Iterable[OperatorCase], tree: SourceTree) -> list[TorchPatch]:
    """Return one patch per place in the source, and one entry for each finding without a patch."""
    findings = [
        (case, finding)
        for case in cases
        for finding in case.findings
        if finding.pattern in (DEAD, REDUNDANT) and finding.path and finding.native
    ]
    resolved = resolved_functions(
        name for _, finding in findings for call in finding.calls for name in call.functions
    )
    patches: dict[tuple[object, ...], TorchPatch] = {}
    for case, finding in findings:
        patch = _patch(case, finding, tree, resolved)
        key = (patch.file, patch.edits) if patch.edits else (patch.operator, patch.why_not)
        earlier = patches.get(key)
        if earlier is not None:
            patch = replace(earlier, found_in=(*earlier.found_in, *patch.found_in))
        patches[key] = patch
    return list(patches.values())


def _patch(
    case: OperatorCase, finding: OperatorFinding, tree: SourceTree, resolved: dict[str, str]
) -> TorchPatch:
    origin = FoundIn(case=case.case, direction=finding.direction, bytes_wasted=finding.bytes_wasted)
    operator = finding.path[0].rpartition("::")[2]
    patch = TorchPatch(
        found_in=(origin,), operator=operator, call=finding.operator.rpartition("::")[2]
    )
    try:
        call = _call_to_change(finding)
        patch = replace(patch, call=call.called)
        site = _site(call, tree, resolved)
        text = tree.text(site.path)
        patch = replace(
            patch,
            function=site.function.name,
            file=str(site.path),
            line=text.count("\n", 0, site.call.end) + 1,
        )
        edits, words = _edits(site, call.called, text)
    except NotProposed as why:
        return replace(patch, why_not=str(why))
    diff = diff_of(str(site.path), text, edits)
    return replace(patch, text=words, edits=edits, diff=diff)


def _call_to_change(finding: OperatorFinding) -> NativeCall:
    """Return the call whose write is wasted; of two equal writes the first, which others may not rely on."""
    certainty = finding.proof.certainty
    if certainty not in CERTAIN:
        raise NotProposed(f"the finding is {certainty or 'not tested'}, neither proven nor tested")
    if not finding.calls:
        raise NotProposed(
            "the native call was not recorded, or several calls write as many elements"
        )
    if finding.pattern == REDUNDANT and len(finding.calls) < 2:  # noqa: PLR2004
        raise NotProposed("the first of the two writes was not recorded")
    call = finding.calls[0] if finding.pattern == DEAD else finding.calls[1]
    if call.called == "copy_":
        raise NotProposed("the write is a copy, on which other paths of the function may rely")
    if call.called != "zero_" and call.called not in UNINITIALIZED:
        raise NotProposed(f"no patch is known for {call.called}")
    return call


def _site(call: NativeCall, tree: SourceTree, resolved: dict[str, str]) -> _Site:
    """Return the call in the source: in the innermost function on the stack whose source is found.

    Functions that it calls in its file may be inlined, so that a call in one of them is possible, too. Several
    possible calls are distinguished by their order, if each of them was observed once.
    """
    names = [source_name(resolved.get(name, name)) for name in call.functions]
    for name in filter(None, names):
        sites = [
            site
            for path, function in tree.definitions(name)
            for site in _sites_in_order(tree, path, function, call.called, {name})
        ]
        callers = [source_name(resolved.get(one, one)) for one in call.callers]
        numbers = [number for number, caller in enumerate(callers) if caller == name]
        if len(sites) > 1 and len(numbers) == len(sites) and call.number in numbers:
            return sites[numbers.index(call.number)]
        if len(sites) > 1:
            raise NotProposed(f"{len(sites)} calls of {call.called} in {name} are possible")
        if sites:
            return sites[0]
    called_names = ", ".join(dict.fromkeys(filter(None, names))) or "no function with a symbol"
    raise NotProposed(f"no call of {call.called} was found in the source ({called_names})")


def _sites_in_order(
    tree: SourceTree, path: Path, function: Function, called: str, around: set[str]
) -> list[_Site]:
    """Return the calls of an operator in a function, and in functions of its file that it calls."""
    clean = tree.clean(path)
    ranked_sites = [
        (call.start, [_Site(path=path, clean=clean, function=function, call=call)])
        for name in (called, called + _SYMBOLIC)
        for call in calls_in(clean, function, name)
    ]
    if len(around) <= _MOST_CALLS:
        for offset, name in called_names(clean, function):
            if name not in around:
                ranked_sites += [
                    (offset, _sites_in_order(tree, path, one, called, {*around, name}))
                    for one in functions_named(clean, name)
                ]
    return [site for _, sites in sorted(ranked_sites, key=itemgetter(0)) for site in sites]


def _edits(site: _Site, called: str, text: str) -> tuple[tuple[SourceEdit, ...], str]:
    call = site.call
    if not is_unconditional(site.clean, site.function, call.start):
        raise NotProposed(f"{called} runs only under a condition in {site.function.name}")
    if returns_early(site.clean, site.function, call.end):
        raise NotProposed(f"{site.function.name} can return before it writes the memory again")
    if called == "zero_":
        return (_removal(site, text),), f"remove {text[call.start : call.end].strip()}"
    start = text.rindex(called, call.start, call.end)
    new = UNINITIALIZED[called]
    edits = [SourceEdit(start=start, end=start + len(called), text=new)]
    edits += _include(text, called, new)
    return tuple(sorted(edits)), f"{called} -> {new}"


def _removal(site: _Site, text: str) -> SourceEdit:
    """Return the removal of the statement `x.zero_();`, or of `.zero_()` at the end of an expression."""
    clean, call = site.clean, site.call
    if clean[call.end : call.end + 1] != ";":
        raise NotProposed("the result of zero_ is used")
    if call.receiver == "?":
        dot = clean.rindex(".", 0, call.end)
        return SourceEdit(start=dot, end=call.end, text="")
    start = text.rindex("\n", 0, call.start) + 1
    end = text.find("\n", call.end) + 1
    if text[start : call.start].strip() or text[call.end + 1 : end].strip():
        raise NotProposed("the line has other statements")
    if clean[:start].rstrip()[-1:] not in frozenset("{};"):
        raise NotProposed("the statement belongs to the one before it")
    return SourceEdit(start=start, end=end, text="")


def _include(text: str, old: str, new: str) -> Iterator[SourceEdit]:
    """Yield the header of the new operator, where the file includes one header per operator."""
    headers = {match[1]: match for match in _INCLUDE.finditer(text)}
    if new.startswith("new_") or new in headers or old not in headers:
        return
    later = sorted(name for name in headers if name > new)
    place = headers[later[0]].start() if later else max(one.end() for one in headers.values())
    yield SourceEdit(start=place, end=place, text=f"#include <ATen/ops/{new}.h>\n")


def edited(text: str, edits: Iterable[SourceEdit]) -> str:
    """Return a text with its edits; equal ones count once."""
    parts, position = [], 0
    for edit in sorted(set(edits)):
        if edit.start < position:
            raise NotProposed("it overlaps with another patch")
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])


def diff_of(name: str, text: str, edits: Sequence[SourceEdit]) -> str:
    """Return the edits as a unified diff with little context."""
    before = text.splitlines(keepends=True)
    after = edited(text, edits).splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=1))


def resolved_functions(names: Iterable[str]) -> dict[str, str]:
    """Return the functions at `LIBRARY+0xOFFSET`, from the symbol tables of the libraries."""
    offsets: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        match = _OFFSET.fullmatch(name)
        if match:
            offsets.setdefault(match["library"], []).append(match["offset"])
    resolved = {}
    for library, several in offsets.items():
        # The address is the one to return to: the call is before it.
        addresses = [hex(int(offset, 16) - 1) for offset in several]
        command = ["addr2line", "-f", "-C", "-e", library, *addresses]
        try:
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        for offset, function in zip(several, output.splitlines()[::2], strict=False):
            if function != "??":
                resolved[f"{library}+{offset}"] = function
    return resolved
