"""The suite `timm`: any image model of the target's timm, with random weights.

Not called `timm`, so that nobody takes it for the package. Nothing is fetched. Names that timm has
given up are taken as long as timm itself takes them.
"""

from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.catalog.image_models import RENAMED, TIMM_BY_NAME
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import batch_size_for, is_whole, nearest
from torchyard.worker.suites.training import take_chance_out
from torchyard.worker.workload import Built, CannotBuild

DEFAULT_BATCH_SIZE = 8
SIZE = "size"


def names() -> List[str]:
    """The models of the installed timm."""
    return list(_timm().list_models())


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make one model; `size` is the image's, every other parameter goes to `create_model`."""
    package = _timm()
    label = "timm/" + name
    wishes = dict(parameters)
    size = wishes.pop(SIZE, None)
    if size is not None and not is_whole(size):
        raise CannotBuild(
            f"the parameter {SIZE} of {label} is {size!r}",
            hint="give a whole number from 1 up",
        )
    _check_name(package, name)
    settings = dict({"pretrained": False, "in_chans": 3, "drop_rate": 0.0}, **wishes)
    if settings["pretrained"]:
        raise CannotBuild(
            f"{label} is asked for pretrained weights, which would be fetched",
            hint="leave out the parameter pretrained",
        )
    try:
        module = package.create_model(name, **settings)
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError) as error:
        raise CannotBuild(
            f"{label} refuses these parameters: {type(error).__name__}: {error}",
            hint=f"{SIZE} is the image's size; other parameters go to timm.create_model",
        ) from error
    if not any("drop" in key for key in wishes):
        take_chance_out(module)
    shape = _image_shape(module, size)
    least = 2 if mode == "training" else 1  # one image cannot feed a norm over single pixels
    batch = batch_size or max(
        least, batch_size_for(TIMM_BY_NAME.get(name), device, DEFAULT_BATCH_SIZE)
    )
    images = torch.randn((batch,) + shape)
    classes = getattr(module, "num_classes", 0)
    loss, said = losses.mean_square, "mean of squares of the features"
    if classes:
        loss = _classified(torch.randint(classes, (batch,)).to(device))
        said = "cross-entropy"
    return Built(
        module.to(device),
        (images.to(device),),
        loss=loss,
        loss_said=said,
        optimizer=losses.sgd(1e-3),
        batch_size=batch,
    )


def _check_name(package: Any, name: str) -> None:
    """Refuse what this timm cannot make, with the new name of what it has renamed."""
    architecture = name.partition(".")[0]  # what follows names a set of weights
    known = list(package.list_models())
    if name in known or architecture in known:
        return
    version = getattr(package, "__version__", "of unknown version")
    given_up = _given_up()
    if given_up.get(name):
        return  # timm takes the old name and makes the new model
    renamed = RENAMED.get(name)
    if renamed:
        raise CannotBuild(
            f"timm {version} has no model {name!r}, it was renamed {renamed}",
            hint=f"use timm/{renamed}",
        )
    if name in given_up:
        raise CannotBuild(
            f"timm {version} has no model {name!r} any more", hint="use an older timm"
        )
    raise CannotBuild(
        f"timm {version} has no model {name!r}{nearest(name, known)}",
        hint="give a name from timm.list_models()",
    )


def _given_up() -> Dict[str, Optional[str]]:
    """Names that timm still takes for others, and those that it only remembers (None)."""
    try:
        from timm.models import get_deprecated_models
    except ImportError:
        return {}
    return dict(get_deprecated_models())


def _image_shape(module: Any, size: Optional[int]) -> Any:
    """What the model's own data configuration says, or the wished size."""
    from timm.data import resolve_data_config

    channels, height, width = resolve_data_config({}, model=module)["input_size"]
    return (channels, size or height, size or width)


def _classified(targets: Any) -> Any:
    """Cross-entropy of the logits; distilled models give several, and the first is the class's."""
    one = losses.cross_entropy(targets)

    def loss(output: Any) -> Any:
        return one(output[0] if isinstance(output, (list, tuple)) else output)

    return loss


def _timm() -> Any:
    try:
        import timm
    except Exception as error:  # a torchvision that does not fit its torch raises RuntimeError
        raise CannotBuild(
            f"the target has no timm package that can be imported: {error}",
            hint="install timm and torchvision into the target",
        ) from error
    return timm
