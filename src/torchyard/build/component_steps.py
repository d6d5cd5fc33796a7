"""The steps every component has, whatever builds it: fetch, working copy, verification."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torchyard.build.layout import YardHome
from torchyard.build.sources import fetch_actions
from torchyard.core.build_plan import Action, Command, Component, Step, Variables, Verify
from torchyard.errors import UsageError

__all__ = ["copy_actions", "fetch_step", "tree_step", "verify_step"]


def fetch_step(component: Component, home: YardHome, variables: Variables) -> Step:
    """Bring the source to this machine: the only step of a component that may use the network."""
    fetch = fetch_actions(
        component.recipe.source,
        destination=Path(component.source),
        downloads=home.downloads,
        where=f"{component.name}: source",
    )
    # Programs of the environment are not there yet, and fetching needs only the system's.
    kept = tuple((name, value) for name, value in variables if name in ("HOME", "LANG", "LC_ALL"))
    return Step(
        name=f"{component.name}/fetch",
        component=component.name,
        title=f"fetch {fetch.summary}",
        actions=fetch.actions,
        variables=(("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), *kept),
        network=True,
        creates=(component.source,),
        kept=False,
        inputs=fetch.inputs,
    )


def tree_step(
    component: Component, *, needs: tuple[str, ...], variables: Variables, root: str
) -> Step:
    """A working copy of the source, patched and prepared.

    Builds write into the source tree (PyTorch's code generation does), so no two builds share one.
    The copy appears under its name only when patches and preparation went well.
    """
    part = f"{component.tree}.part"
    copy, inputs = copy_actions(component, part)
    actions = (
        Command(argv=("rm", "-rf", part, component.tree)),
        Command(argv=("mkdir", "-p", str(Path(component.tree).parent))),
        *copy,
        Command(argv=("mv", part, component.tree)),
    )
    return Step(
        name=f"{component.name}/tree",
        component=component.name,
        title="make the working copy",
        actions=actions,
        needs=needs,
        variables=variables,
        root=root,
        creates=(component.tree,),
        kept=False,
        inputs=inputs,
    )


def copy_actions(
    component: Component, folder: str
) -> tuple[tuple[Action, ...], tuple[tuple[str, str], ...]]:
    """How a patched and prepared copy of the source gets into a folder; checksums of the patches."""
    recipe = component.recipe
    actions: list[Action] = [Command(argv=("cp", "-a", "--reflink=auto", component.source, folder))]
    inputs: list[tuple[str, str]] = []
    for name in recipe.patches:
        path = Path(recipe.folder, name)
        inputs.append((f"patch {name}", _digest(path, f"{recipe.name}: patches")))
        actions.append(Command(argv=("patch", "-p1", "--forward", "-i", str(path)), folder=folder))
    actions += [
        Command(argv=command.run, folder=str(Path(folder, command.folder)))
        for command in recipe.prepare
    ]
    return tuple(actions), tuple(inputs)


def verify_step(
    component: Component, *, needs: tuple[str, ...], variables: Variables, root: str, report: Path
) -> Step:
    """Check what was built."""
    return Step(
        name=f"{component.name}/verify",
        component=component.name,
        title="check the result",
        actions=(Verify(component=component.name, report=str(report)),),
        needs=needs,
        variables=variables,
        root=root,
        creates=(str(report),),
    )


def _digest(path: Path, where: str) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            f"{where}: {path} cannot be read",
            why=error.strerror or str(error),
            hint="check patches",
        ) from error
