"""One model of pytorch/benchmark: what it needs, installed into an environment of its own.

The checkout's own requirements come first, then those of the model, with the network; then its
`install.py` runs without it. Options: `model`, its name (empty: no model), and `install-online`, for the
models whose `install.py` fetches weights or data. The torch that is there must still be there after it.
"""

from __future__ import annotations

import re
from typing import Final

from torchyard.build.builders.python_project import requirement_steps
from torchyard.build.builders.site import Site
from torchyard.core.build_plan import Command, Step
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError

__all__ = ["model_of", "steps"]

_MODEL: Final = "model"
_ONLINE: Final = "install-online"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")

# Which folder holds the model is known only when the source is there.
_ENTER: Final = """
for holder in models canary_models; do
    folder="$1/torchbenchmark/$holder/$2"
    if [ -f "$folder/__init__.py" ]; then break; fi
done
cd "$folder" 2>/dev/null || { echo "the checkout has no model $2" >&2; exit 1; }
"""
_REQUIREMENTS: Final = (
    _ENTER
    + """
if [ ! -f requirements.txt ]; then echo "$2 has no requirements.txt"; exit 0; fi
exec "$3" -m pip install --no-input --disable-pip-version-check -r requirements.txt
"""
)
_ASK_TORCH: Final = (
    "import importlib.metadata as m; "
    'print(*{d.version for d in m.distributions(name="torch")} or ["none"])'
)
_INSTALL: Final = (
    _ENTER
    + """
if [ ! -f install.py ]; then echo "$2 has no install.py"; exit 0; fi
before=$("$3" -c "$4") || exit
"$3" install.py || exit
after=$("$3" -c "$4") || exit
if [ "$before" != "$after" ]; then
    echo "install.py of $2 replaced torch $before by $after" >&2
    exit 1
fi
"""
)


def steps(site: Site) -> tuple[Step, ...]:
    """The requirements of the checkout, and of the model where one is named."""
    made = requirement_steps(site)
    model, online = _options(site)
    if not model:
        return made
    component = site.component
    place = ("sh", component.tree, model, component.python)
    requirements = site.step(
        "model-requirements",
        f"install what the requirements of {model} name",
        (Command(argv=("sh", "-c", _REQUIREMENTS, *place), folder=component.tree),),
        needs=(made[-1].name,) if made else site.needs,
        network=True,
    )
    install = site.step(
        "model-install",
        f"run the install.py of {model}",
        (Command(argv=("sh", "-c", _INSTALL, *place, _ASK_TORCH), folder=component.tree),),
        needs=(requirements.name,),
        # What the requirements name is there already: pip has nothing left to look up.
        variables=() if online else (("PIP_NO_INDEX", "1"),),
        network=online,
    )
    return (*made, requirements, install)


def model_of(options: dict[str, str | int | float | bool]) -> str:
    """The model that the options name, checked; empty where none is."""
    name = str(options.get(_MODEL, ""))
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UsageError(
            f"torchbench: the model {name!r} is no name of a folder",
            hint="`torchyard workloads --torchbench FOLDER` lists the models of a checkout",
        )
    return name


def _options(site: Site) -> tuple[str, bool]:
    options = site.recipe.options
    for key in options:
        if key not in (_MODEL, _ONLINE):
            raise UsageError(
                f"{site.recipe.name}: there is no option {key!r}",
                hint=nearest_hint(key, (_MODEL, _ONLINE), what="option"),
            )
    online = options.get(_ONLINE, False)
    if not isinstance(online, bool):
        raise UsageError(
            f"{site.recipe.name}: {_ONLINE} is {online!r}", hint=f"write {_ONLINE}=true or false"
        )
    return model_of(options), online
