"""The suite `timm`: any image model of the target's timm, with random weights.

Nothing is downloaded. Deprecated names are accepted as long as timm accepts them.
"""

from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.catalog import RENAMED, TIMM_BY_NAME
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import (
    batch_size_for,
    import_package,
    nearest,
    require_whole,
    version_of,
)
from torchyard.worker.suites.training import disable_dropout
from torchyard.worker.workload import BuiltWorkload, CannotBuild

DEFAULT_BATCH_SIZE = 8
SIZE = "size"


def names() -> List[str]:
    """Return the models of the installed timm."""
    return list(_timm().list_models())


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Build one model; `size` is the image size, other parameters are passed to `create_model`."""
    package = _timm()
    label = "timm/" + name
    options = dict(parameters)
    size = options.pop(SIZE, None)
    require_whole(label, SIZE, size)
    _check_name(package, name)
    settings = dict({"pretrained": False, "in_chans": 3, "drop_rate": 0.0}, **options)
    if settings["pretrained"]:
        raise CannotBuild(
            f"{label}: pretrained weights would have to be downloaded",
            hint="remove the parameter pretrained",
        )
    try:
        module = package.create_model(name, **settings)
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError) as error:
        raise CannotBuild(
            f"{label} does not accept these parameters: {type(error).__name__}: {error}",
            hint=f"{SIZE} is the image size; other parameters are passed to timm.create_model",
        ) from error
    if not any("drop" in key for key in options):
        disable_dropout(module)
    shape = _image_shape(module, size)
    fewest = 2 if mode == "training" else 1  # batch norm over single pixels needs two images
    batch = batch_size or max(
        fewest, batch_size_for(TIMM_BY_NAME.get(name), device, DEFAULT_BATCH_SIZE)
    )
    images = torch.randn((batch,) + shape)
    classes = getattr(module, "num_classes", 0)
    loss, loss_name = losses.mean_square, "mean of squares of the features"
    if classes:
        loss = _classified(torch.randint(classes, (batch,)).to(device))
        loss_name = "cross-entropy"
    return BuiltWorkload(
        module.to(device),
        (images.to(device),),
        loss=loss,
        loss_name=loss_name,
        optimizer=losses.sgd(1e-3),
        batch_size=batch,
    )


def _check_name(package: Any, name: str) -> None:
    """Raise CannotBuild for a model that this timm does not have, with its new name if renamed."""
    architecture = name.partition(".")[0]  # the rest is the tag of a set of weights
    available = list(package.list_models())
    if name in available or architecture in available:
        return
    version = version_of(package)
    deprecated = _deprecated_names()
    if deprecated.get(name):
        return  # timm accepts the old name and creates the new model
    renamed = RENAMED.get(name)
    if renamed:
        raise CannotBuild(
            f"timm {version} has no model {name!r}; it was renamed to {renamed}",
            hint=f"use timm/{renamed}",
        )
    if name in deprecated:
        raise CannotBuild(
            f"the model {name!r} was removed from timm {version}", hint="use an older timm"
        )
    raise CannotBuild(
        f"timm {version} has no model {name!r}{nearest(name, available)}",
        hint="give a name from timm.list_models()",
    )


def _deprecated_names() -> Dict[str, Optional[str]]:
    """Return deprecated names with their replacement; None for removed models."""
    try:
        from timm.models import get_deprecated_models
    except ImportError:
        return {}
    return dict(get_deprecated_models())


def _image_shape(module: Any, size: Optional[int]) -> Any:
    """Return the image shape of the model's data configuration, or of the requested size."""
    from timm.data import resolve_data_config

    channels, height, width = resolve_data_config({}, model=module)["input_size"]
    return (channels, size or height, size or width)


def _classified(targets: Any) -> Any:
    """Return the cross-entropy of the logits; of several heads (distilled models) the first."""
    one = losses.cross_entropy(targets)

    def loss(output: Any) -> Any:
        return one(output[0] if isinstance(output, (list, tuple)) else output)

    return loss


def _timm() -> Any:
    return import_package("timm", "install timm and torchvision into the target")
