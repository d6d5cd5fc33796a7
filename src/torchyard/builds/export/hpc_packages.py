"""A plan as packages of EasyBuild and Spack, one per component: a starting point for HPC sites. No I/O.

Written are sources, options, variables and dependencies between components. Compilers, CMake and Python come
from the site's own toolchain. What cannot be expressed is a `Missing` line: patches, commands before the
build, checks of the result. Folders of other components become the variables of those packages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from torchyard.builds.builders import variable_value
from torchyard.builds.cmake_cache import cmake_value
from torchyard.builds.export.shell import ExportedFile, ExportFacts
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import Recipe, SourceKind
from torchyard.builds.sources import used_source_kind
from torchyard.errors import UsageError
from torchyard.presentation.safe_text import one_line

_HEAD: Final = "# From the plan {name} of Torchyard: a starting point, to be adapted to the site."


@dataclass(frozen=True, kw_only=True)
class _BuildSystem:
    easyblock: str
    spack_class: str
    spack_module: str


_SYSTEMS: Final = {
    "cmake": _BuildSystem(easyblock="CMakeMake", spack_class="CMakePackage", spack_module="cmake"),
    "make": _BuildSystem(
        easyblock="MakeCp", spack_class="MakefilePackage", spack_module="makefile"
    ),
    "scons": _BuildSystem(easyblock="SCons", spack_class="SConsPackage", spack_module="scons"),
    "python": _BuildSystem(
        easyblock="PythonPackage", spack_class="PythonPackage", spack_module="python"
    ),
}


def export_easybuild(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Return one easyconfig per component; EasyBuild finds it by its name."""
    del facts
    return tuple(
        ExportedFile(
            name=f"{part.name}-{part.recipe.version}{_suffix(part)}.eb",
            text=_easyconfig(plan, part),
        )
        for part in _components(plan)
    )


def export_spack(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Return one package per component, in the folders of a Spack repository."""
    del facts
    return tuple(
        ExportedFile(name=f"packages/{_folder(part.name)}/package.py", text=_package(plan, part))
        for part in _components(plan)
    )


def _components(plan: Plan) -> list[Component]:
    parts = [
        replace(part, name=plan.name) if part.name == "generic" else part
        for part in plan.components
    ]
    for part in parts:
        if part.recipe.builder not in _SYSTEMS:
            raise UsageError(
                f"{part.name} cannot be exported as a package",
                why=f"its builder is {part.recipe.builder!r}; known are {', '.join(_SYSTEMS)}",
                hint="export it with --format script",
            )
        if not _NAME.fullmatch(part.name) or not _VERSION.fullmatch(part.recipe.version):
            raise UsageError(
                f"{part.name} {part.recipe.version} cannot be exported as a package",
                why="a package needs a name and a version of letters, digits, dots and hyphens",
                hint="set them with --name and --version",
            )
    return parts


_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def _folders(plan: Plan, own: Component, of: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return folders of the plan with their replacements, longest first.

    Components share a prefix: it stands for the only needed one that is installed there, if there is one.
    """
    pairs = [(part.tree, of(part.name)) for part in plan.components if part.name != own.name]
    installed = [part for part in map(plan.component, own.needs) if _is_installed(part.recipe)]
    if len(installed) == 1:
        pairs.append((installed[0].prefix, of(installed[0].name)))
    return sorted(pairs, key=lambda pair: -len(pair[0]))


def _is_installed(recipe: Recipe) -> bool:
    return (recipe.builder == "cmake" and recipe.cmake.install) or (
        recipe.builder == "make" and bool(recipe.make.install_targets)
    )


def _replaced(text: str, folders: Sequence[tuple[str, str]]) -> str:
    for folder, replacement in folders:
        text = text.replace(folder, replacement)
    return text


def _installed_files(recipe: Recipe) -> list[str]:
    """Return the files that the plan checks below the prefix, without patterns."""
    return [name for name in recipe.verify.files if not re.search(r"^/|[*?\[]", name)]


def _is_foreign(plan: Plan, value: str) -> bool:
    """Whether a value still names a folder of this build."""
    return plan.folder in value


def _options(recipe: Recipe) -> list[tuple[str, str]]:
    form = cmake_value if _uses_cmake_arguments(recipe) else variable_value
    return [(key, form(value)) for key, value in recipe.options.items()]


def _uses_cmake_arguments(recipe: Recipe) -> bool:
    return recipe.builder == "cmake" or (
        recipe.builder == "python" and recipe.python.options_as == "cmake-args"
    )


def _open_points(plan: Plan, part: Component) -> list[str]:
    """Return what the package lacks."""
    recipe = part.recipe
    points = [f"apply the patch {name}" for name in recipe.patches]
    points += [
        "run before the build: "
        + shlex.join(one.run).replace(f"{plan.folder}/env/bin/", "").replace(plan.folder, "BUILD")
        for one in recipe.prepare
    ]
    points += [
        f"set {name}: its value is a folder of this build"
        for name, value in recipe.environment.variables.items()
        if _is_foreign(plan, _replaced(value, _folders(plan, part, str)))
    ]
    kind = _source_kind(recipe)
    if kind == "debian":
        points.append("state the source: this plan takes it from Debian")
    if kind == "sdist" and recipe.source.sdist and recipe.source.sdist.name != part.name:
        points.append(f"state the URL of the source: it is that of {recipe.source.sdist.name}")
    if kind == "folder":
        points.append("state the source: this plan takes it from a folder of this machine")
    if kind == "git" and recipe.source.git and recipe.source.git.overrides:
        chosen = ", ".join(f"{path} at {ref}" for path, ref in recipe.source.git.overrides.items())
        points.append(f"submodules are replaced: {chosen}")
    return [one_line(point) for point in points]


def _source_kind(recipe: Recipe) -> SourceKind:
    """Return the kind of source, also where the recipe has only one and does not name it."""
    return used_source_kind(recipe.source, f"{recipe.name}: source")


_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def _variables(plan: Plan, part: Component, folders: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the variables of the build; options of a Python project are variables, too."""
    recipe = part.recipe
    variables = {
        name: _replaced(value, folders) for name, value in recipe.environment.variables.items()
    }
    if recipe.builder == "python":
        options = _options(recipe)
        if _uses_cmake_arguments(recipe):
            variables["CMAKE_ARGS"] = " ".join(f"-D{key}={value}" for key, value in options)
        else:
            variables.update(options)
    return {
        name: value
        for name, value in variables.items()
        if value and not _is_foreign(plan, value) and name.isidentifier()
    }


# ---------------------------------------------------------------- EasyBuild


def _easyconfig(plan: Plan, part: Component) -> str:
    recipe = part.recipe
    folders = _folders(plan, part, lambda name: f"$EBROOT{_easybuild_name(name)}")
    lines = [_HEAD.format(name=one_line(plan.name))]
    lines += [f"# Missing: {point}" for point in _open_points(plan, part)]
    lines += [
        f"easyblock = {_easyblock(recipe)!r}",
        "",
        f"name = {part.name!r}",
        f"version = {recipe.version!r}",
        f"versionsuffix = {_suffix(part)!r}",
        "",
        f"homepage = {_homepage(recipe)!r}",
        f"description = {one_line(recipe.summary) or part.name!r}",
        "",
        "toolchain = SYSTEM",
        "",
        *_easybuild_source(part),
        "",
    ]
    needed = [plan.component(name) for name in part.needs]
    lines += ["dependencies = ["]
    lines += [f"    ({one.name!r}, {one.recipe.version!r}, {_suffix(one)!r})," for one in needed]
    lines += ["]", ""]
    variables = _variables(plan, part, folders)
    exports = " ".join(f"{name}={_shell_word(value)}" for name, value in variables.items())
    prefix = f"export {exports} && " if exports else ""
    options = [f"{key}={_replaced(value, folders)}" for key, value in _options(recipe)]
    if recipe.builder == "cmake":
        lines += [
            *([] if _uses_ninja(recipe) else [f"generator = {recipe.cmake.generator!r}"]),
            f"build_type = {recipe.cmake.build_type!r}",
            *([f"srcdir = {recipe.cmake.folder!r}"] if recipe.cmake.folder else []),
            f"preconfigopts = {prefix!r}",
            f"configopts = {' '.join(_shell_word('-D' + one) for one in options)!r}",
        ]
    elif recipe.builder == "python":
        lines += [
            f"preinstallopts = {prefix!r}",
            "use_pip = True",
            "sanity_pip_check = True",
            f"options = {{'modulename': {recipe.verify.import_name or part.name!r}}}",
        ]
    else:
        lines += [
            f"prebuildopts = {prefix!r}",
            f"buildopts = {' '.join(map(_shell_word, options))!r}",
        ]
        if recipe.builder == "make":
            lines += ["files_to_copy = ['*']  # Missing: what the package consists of"]
    if recipe.builder != "python":
        files = _installed_files(recipe)
        lines += [
            "",
            f"sanity_check_paths = {{'files': {files!r}, 'dirs': []}}"
            if files
            else "sanity_check_paths = {'files': [], 'dirs': ['.']}  # Missing: name the libraries",
        ]
    lines += ["", f"moduleclass = {'ai' if recipe.builder == 'python' else 'lib'!r}"]
    return "\n".join(lines) + "\n"


def _uses_ninja(recipe: Recipe) -> bool:
    return recipe.builder == "cmake" and recipe.cmake.generator == "Ninja"


def _easyblock(recipe: Recipe) -> str:
    return "CMakeNinja" if _uses_ninja(recipe) else _SYSTEMS[recipe.builder].easyblock


def _suffix(part: Component) -> str:
    return f"-{part.recipe.variant}" if part.recipe.variant else ""


def _shell_word(text: str) -> str:
    """Quote a word for the shell, except for references to other packages."""
    return (
        '"' + re.sub(r'([\\"`]|\$(?!EBROOT))', r"\\\1", text) + '"'
        if "$EBROOT" in text
        else (shlex.quote(text))
    )


def _easybuild_source(part: Component) -> list[str]:
    source, kind = part.recipe.source, _source_kind(part.recipe)
    if kind == "git" and source.git is not None:
        url, _, repository = source.git.url.rstrip("/").rpartition("/")
        config = {
            "url": url,
            "repo_name": repository.removesuffix(".git"),
            "commit" if _COMMIT.fullmatch(source.git.ref) else "tag": source.git.ref,
            "recursive": source.git.submodules,
        }
        return [
            "sources = [{",
            f"    'filename': '{part.name}-%(version)s.tar.xz',",
            f"    'git_config': {config!r},",
            "}]",
        ]
    if kind == "tarball" and source.tarball is not None:
        url, _, file = source.tarball.url.rpartition("/")
        urls = [url] if "://" in url else []
        name = file if urls else source.tarball.url
        return [
            f"source_urls = {urls!r}",
            f"sources = [{name!r}]",
            f"checksums = [{source.tarball.sha256!r}]",
        ]
    if kind == "sdist" and source.sdist is not None:
        return [
            "source_urls = [PYPI_SOURCE]",
            f"sources = [{f'{source.sdist.name}-{source.sdist.version}.tar.gz'!r}]",
            f"checksums = {[source.sdist.sha256] if source.sdist.sha256 else []!r}",
        ]
    return ["sources = []"]


def _easybuild_name(name: str) -> str:
    """Return the name as in the variable with the folder of a package."""
    return name.upper().replace("-", "MIN")


# ---------------------------------------------------------------- Spack


def _package(plan: Plan, part: Component) -> str:
    recipe, system = part.recipe, _SYSTEMS[part.recipe.builder]
    marks = {one.name: f"\0{one.name}\0" for one in plan.components}
    folders = _folders(plan, part, marks.__getitem__)
    files = _installed_files(recipe) if recipe.builder != "python" else []
    lines = [_HEAD.format(name=one_line(plan.name))]
    lines += [f"# Missing: {point}" for point in _open_points(plan, part)]
    lines += [
        "from spack.package import *",
        "",
        "try:",
        f"    from spack_repo.builtin.build_systems.{system.spack_module} import {system.spack_class}",
        "except ImportError:  # before Spack 1.0, spack.package has it",
        "    pass",
        "",
        "",
        f"class {_class(part.name)}({system.spack_class}):",
        f"    {_doc(recipe.summary or part.name)}",
        "",
        f"    homepage = {_homepage(recipe)!r}",
        *(f"    {line}" if line else "" for line in _spack_source(recipe)),
        *([f"    sanity_check_is_file = {files!r}"] if files else []),
        "",
        '    depends_on("c", type="build")',
        '    depends_on("cxx", type="build")',
    ]
    tools = {"cmake": ("cmake", "ninja"), "scons": ("scons",), "make": ("gmake",)}
    build_tools = tools.get(recipe.builder, ("python", "py-pip", "py-setuptools", "cmake", "ninja"))
    lines += [f'    depends_on("{one}", type="build")' for one in build_tools]
    if recipe.builder == "python":
        lines += ['    depends_on("python", type=("build", "run"))']
    lines += [
        f'    depends_on("{_spack_name(name)}@{plan.component(name).recipe.version}")'
        for name in part.needs
    ]
    variables = _variables(plan, part, folders)
    if variables:
        lines += ["", "    def setup_build_environment(self, env):"]
        lines += [f"        env.set({name!r}, {_joined(text)})" for name, text in variables.items()]
    options = [f"{key}={_replaced(value, folders)}" for key, value in _options(recipe)]
    if options and recipe.builder != "python":
        method = {"cmake": "cmake_args(self)", "scons": "build_args(self, spec, prefix)"}
        name = method.get(recipe.builder)
        if name:
            dash = "-D" if recipe.builder == "cmake" else ""
            lines += ["", f"    def {name}:", "        return ["]
            lines += [f"            {_joined(dash + one)}," for one in options]
            lines += ["        ]"]
        else:
            lines += ["", "    @property", "    def build_targets(self):", "        return ["]
            lines += [f"            {_joined(one)}," for one in options]
            lines += ["        ]"]
    return "\n".join(lines) + "\n"


def _joined(text: str) -> str:
    """Return a Python expression for a text with references to other packages."""
    words = []
    for index, word in enumerate(text.split("\0")):
        if index % 2:
            words.append(f'str(self.spec["{_spack_name(word)}"].prefix)')
        elif word:
            words.append(repr(word))
    return " + ".join(words) or "''"


def _spack_source(recipe: Recipe) -> list[str]:
    source, used = recipe.source, _source_kind(recipe)
    if used == "git" and source.git is not None:
        git = source.git
        kind = "commit" if _COMMIT.fullmatch(git.ref) else "tag"
        kind = "branch" if git.ref in {"main", "master"} else kind
        modules = ", submodules=True" if git.submodules else ""
        return [
            f"git = {git.url!r}",
            "",
            f"version({recipe.version!r}, {kind}={git.ref!r}{modules})",
        ]
    if used == "tarball" and source.tarball is not None:
        url = source.tarball.url
        url = url if "://" in url else f"file://{url}"
        return [
            f"url = {url!r}",
            "",
            f"version({recipe.version!r}, url={url!r}, sha256={source.tarball.sha256!r})",
        ]
    if used == "sdist" and source.sdist is not None:
        checksum = f", sha256={source.sdist.sha256!r}" if source.sdist.sha256 else ""
        name = f"{source.sdist.name[:1]}/{source.sdist.name}/{source.sdist.name}-{source.sdist.version}"
        return [f"pypi = {name + '.tar.gz'!r}", "", f"version({recipe.version!r}{checksum})"]
    return [f"version({recipe.version!r})"]


def _spack_name(name: str) -> str:
    return name.lower().replace("_", "-")


def _folder(name: str) -> str:
    return _spack_name(name).replace("-", "_")


def _class(name: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[-_]", name))


def _doc(text: str) -> str:
    escaped = one_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{escaped}"""'


def _homepage(recipe: Recipe) -> str:
    """Return the address of the repository, where it is one."""
    url = recipe.source.git.url if recipe.source.git is not None else ""
    return url if urlsplit(url).scheme in {"http", "https"} else ""
