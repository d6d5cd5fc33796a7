"""Difference of the software of two sides: build records, build settings of torch, loaded libraries.

A part is linked with a library only where there is evidence: a primitive that oneDNN reported for its
operators, or a table of the libraries that may serve a class of operators. The wording tells which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.record import BuildRecord, list_builds
from torchyard.builds.verify.target_python import parse_parallel_info, parse_show
from torchyard.core.study import Target
from torchyard.core.units import format_bytes
from torchyard.why.model import Part, SoftwareDifference, Source

NONE: Final = "none"
RECORD, TORCH, LIBRARY = "build record", "torch", "library"
_FLAGS: Final = "CXX_FLAGS"
_IGNORED: Final = frozenset({"TORCH_VERSION", "COMMIT_SHA", "CXX_COMPILER", "MKL_NUM_THREADS"})
"""Settings that repeat another one, and a variable that only some versions of torch report."""
_OFF: Final = frozenset({"OFF", "0", "FALSE", ""})
_ON: Final = frozenset({"ON", "1", "TRUE"})
_BLAS: Final = (
    *("libopenblas", "libmkl", "libblis", "libnvpl", "libatlas", "libflexiblas", "libblas"),
    *("mkl", "BLAS_INFO"),
)
_ONEDNN: Final = ("onednn", "libdnnl", "libarm_compute")
_OWN: Final = ("compiler", "cpu capability", _FLAGS, "libgomp", "libomp", "libiomp", "openmp")
_MOST: Final = 3


@dataclass(frozen=True, kw_only=True)
class OperatorClass:
    """Operators that the same libraries may serve."""

    operators: tuple[str, ...]
    """Beginnings of names without leading underscores."""
    primitives: tuple[str, ...]
    """Names of the primitives of oneDNN."""
    libraries: tuple[str, ...]
    """Libraries besides oneDNN: beginnings of names."""


CLASSES: Final = (
    OperatorClass(
        operators=(
            "mm",
            "addmm",
            "bmm",
            "baddbmm",
            "addbmm",
            "linear",
            "matmul",
            "mv",
            "addmv",
            "dot",
        ),
        primitives=("matmul", "inner_product"),
        libraries=_BLAS,
    ),
    OperatorClass(
        operators=("conv", "slow_conv", "thnn_conv", "mkldnn_conv", "nnpack"),
        primitives=("convolution", "deconvolution"),
        libraries=_BLAS,
    ),
    OperatorClass(
        operators=("linalg", "cholesky", "lu_", "triangular_solve", "ormqr", "geqrf"),
        primitives=(),
        libraries=(*_BLAS, "liblapack"),
    ),
    OperatorClass(operators=("fft",), primitives=(), libraries=("libmkl", "mkl")),
)


@dataclass(frozen=True, kw_only=True)
class Software:
    """What one side runs on."""

    torch: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    """Name -> version, or size where the version is unknown."""
    record: dict[str, str] = field(default_factory=dict)
    """Empty if the target is not a build of Torchyard."""
    primitives: tuple[tuple[Source | None, str, str], ...] = ()
    """Source operator (None in compiled code), primitive and implementation of oneDNN."""

    @classmethod
    def of(cls, answer: Mapping[str, Any], target: Target) -> Software:
        """Return the software of a worker's answer."""
        settings = parse_show(str(answer["show"])) | parse_parallel_info(str(answer["parallel"]))
        own = {"version": answer["torch"], "commit": answer["git"], "Python": answer["python"]}
        libraries: dict[str, list[str]] = {}
        for name, version, size_bytes in answer["libraries"]:
            text = (
                f"{version} ({format_bytes(size_bytes)})" if version else format_bytes(size_bytes)
            )
            libraries.setdefault(str(name), []).append(text)
        return cls(
            torch={name: str(value) for name, value in {**own, **settings}.items()},
            libraries={name: ", ".join(texts) for name, texts in libraries.items()},
            record=record_facts(target),
            primitives=tuple(
                (None if unit is None else Source.of(unit), str(kind), str(implementation))
                for unit, kind, implementation in answer["primitives"]
            ),
        )


def record_facts(target: Target) -> dict[str, str]:
    """Return the facts of the build record of a target; empty if it has none."""
    for entry in list_builds(BuildsDirectory.default()):
        if entry.record is not None and entry.record.python == target.python:
            return dict(_facts_of(entry.record))
    return {}


def _facts_of(record: BuildRecord) -> Iterator[tuple[str, str]]:
    yield "recipe", f"{record.recipe.name} {record.recipe.variant}".strip()
    for component in record.components:
        yield f"{component.name}: version", component.version
        if component.source is not None and component.source.commit:
            yield f"{component.name}: commit", component.source.commit[:12]
        for name, value in component.options.items():
            yield f"{component.name}: {name}", str(value)
        for tool in component.toolchain:
            yield f"{component.name}: {tool.name}", tool.version


def software_differences(baseline: Software, candidate: Software) -> tuple[SoftwareDifference, ...]:
    """Return the facts that differ: build records, then settings of torch, then libraries."""
    records = [baseline.record, candidate.record]
    if not all(records):  # one of them is no build of Torchyard
        records = [{name: record[name] for name in ("recipe",) if record} for record in records]
    groups = (
        (RECORD, records[0], records[1]),
        (TORCH, baseline.torch, candidate.torch),
        (LIBRARY, baseline.libraries, candidate.libraries),
    )
    differences = []
    for group, one, other in groups:
        for name in dict.fromkeys((*one, *other)):
            texts = _value(name, one), _value(name, other)
            if texts[0] == texts[1] or name in _IGNORED:
                continue
            if name == _FLAGS and NONE not in texts:
                texts = _only_words(*texts)
            differences.append(
                SoftwareDifference(group=group, name=name, baseline=texts[0], candidate=texts[1])
            )
    return tuple(differences)


def _value(name: str, facts: Mapping[str, str]) -> str:
    """Return a fact; switches have the same words in all versions of torch."""
    text = facts.get(name, "")
    if name.startswith("USE_"):
        return NONE if text in _OFF else "ON" if text in _ON else text
    return text or NONE


def _only_words(one: str, other: str) -> tuple[str, str]:
    """Return the words of each text that the other one does not have."""
    words = one.split(), other.split()
    only = [[word for word in own if word not in set(words[1 - i])] for i, own in enumerate(words)]
    return " ".join(only[0]) or "(no other flag)", " ".join(only[1]) or "(no other flag)"


def library_links(
    parts: Sequence[Part],
    baseline: Software,
    candidate: Software,
    differences: Sequence[SoftwareDifference],
) -> Iterator[tuple[Part, str]]:
    """Yield parts with what serves or may serve their operators, where that differs.

    Other parts than named ones only with evidence: what may serve them explains nothing.
    """
    for part in parts:
        if part.kind != "operators":
            continue
        kinds = [
            one
            for one in CLASSES
            if any(source.operator.lstrip("_").startswith(one.operators) for source in part.sources)
        ]
        ran = [_primitives(side, part, kinds) for side in (baseline, candidate)]
        texts = []
        if ran[0] != ran[1]:
            texts.append(f"oneDNN executed {_counted(ran[0])} -> {_counted(ran[1])}")
        elif not part.named:
            continue
        elif ran[0]:
            texts.append(f"oneDNN executed {_counted(ran[0])} on both sides")
        names = _ONEDNN if ran[0] or ran[1] else ()
        if not (ran[0] and ran[1]):
            names = (*names, *(name for one in kinds for name in one.libraries))
        own = not kinds and not names
        served = _texts(differences, _OWN if own else names) if part.named else []
        if served:
            verb = "computed by torch itself, may depend on" if own else "may be served by"
            texts.append(f"{verb} {', '.join(served)}")
        if texts:
            yield part, "; ".join(texts)


def _primitives(side: Software, part: Part, kinds: Sequence[OperatorClass]) -> Counter[str]:
    """Return the primitives of the part's operators; in compiled code those of its class."""
    names = {name for one in kinds for name in one.primitives}
    return Counter(
        f"{kind} ({implementation})"
        for source, kind, implementation in side.primitives
        if (source in part.sources if source is not None else kind in names)
    )


def _counted(primitives: Counter[str]) -> str:
    shown = [f"{count}x {name}" for name, count in primitives.most_common(_MOST)]
    return " and ".join(shown) or "nothing"


def _texts(differences: Sequence[SoftwareDifference], names: Sequence[str]) -> list[str]:
    return [
        "compiler flags" if one.name == _FLAGS else f"{one.name} {one.baseline} -> {one.candidate}"
        for one in differences
        if one.group != RECORD and names and one.name.startswith(tuple(names))
    ]
