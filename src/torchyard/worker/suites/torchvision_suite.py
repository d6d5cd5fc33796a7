"""The suite `torchvision`: classification, detection and segmentation models.

Inputs and losses follow torchvision's training scripts.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.nn import functional

from torchyard.worker.catalog import TORCHVISION_BY_NAME
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import (
    batch_size_for,
    import_package,
    nearest,
    require_whole,
    version_of,
)
from torchyard.worker.suites.training import disable_dropout
from torchyard.worker.workload import BuiltWorkload, CannotBuild, map_tensors

Task = Tuple[Tuple[Any, ...], Callable[[Any], Any], str]

# Image size of the published weights, where not 224.
IMAGE_SIZES = {
    "inception_v3": 299,
    "efficientnet_b1": 240,
    "efficientnet_b2": 288,
    "efficientnet_b3": 300,
    "efficientnet_b4": 380,
    "efficientnet_b5": 456,
    "efficientnet_b6": 528,
    "efficientnet_b7": 600,
    "efficientnet_v2_s": 384,
    "efficientnet_v2_m": 480,
    "efficientnet_v2_l": 480,
    "swin_v2_t": 256,
    "swin_v2_s": 256,
    "swin_v2_b": 256,
}
USUAL_SIZE = 224
SEGMENTED_SIZE = 480
# About the image size of COCO; the models resize images themselves.
DETECTED_SIZE = (480, 640)
# Batch norm after pooling to one pixel needs two images.
NEED_TWO_IMAGES = ("deeplabv3", "inception_v3")

OBJECTS = 10
KEYPOINTS = 17
# Weights of the losses of auxiliary heads, as published with the two models.
AUXILIARY = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3}
SEGMENTED_AUXILIARY = 0.5


def settings_and_size(
    name: str, task: str, size: Optional[int]
) -> Tuple[Dict[str, Any], Tuple[int, int]]:
    """Return further arguments of the model's function, and height and width of the images."""
    if task == "detection":
        return {}, ((size, size) if size else DETECTED_SIZE)
    if task == "segmentation":
        return {}, (size or SEGMENTED_SIZE, size or SEGMENTED_SIZE)
    edge = size or IMAGE_SIZES.get(name, USUAL_SIZE)
    settings: Dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        settings["init_weights"] = False  # otherwise they warn about slow initialisation
    if name.startswith("vit_"):
        settings["image_size"] = edge
    if name.startswith("maxvit_"):
        settings["input_size"] = (edge, edge)
    return settings, (edge, edge)


def classification(
    options: Dict[str, Any], rows: int, images: Tuple[int, int], device: Any
) -> Task:
    """Return images with one class each; auxiliary heads have their published loss weights."""
    targets = torch.randint(options.get("num_classes", 1000), (rows,)).to(device)
    pixels = torch.randn((rows, 3) + images).to(device)
    one = losses.cross_entropy(targets)

    def loss(output: Any) -> Any:
        if not isinstance(output, tuple):
            return one(output)
        share = AUXILIARY.get(type(output).__name__, 0.4)
        heads = [head for head in output[1:] if head is not None]
        return one(output[0]) + share * sum(one(head) for head in heads)

    return (pixels,), loss, "cross-entropy"


def segmentation(options: Dict[str, Any], rows: int, images: Tuple[int, int], device: Any) -> Task:
    """Return images with a class for every pixel; the auxiliary head has loss weight 0.5."""
    pixels = torch.randn((rows, 3) + images).to(device)
    targets = torch.randint(options.get("num_classes", 21), (rows,) + images).to(device)

    def one(logits: Any) -> Any:
        return functional.cross_entropy(losses.widened(logits), targets)

    def loss(output: Any) -> Any:
        main = one(output["out"])
        return main + SEGMENTED_AUXILIARY * one(output["aux"]) if "aux" in output else main

    return (pixels,), loss, "per-pixel cross-entropy"


def detection(
    name: str,
    options: Dict[str, Any],
    rows: int,
    images: Tuple[int, int],
    training: bool,
    device: Any,
) -> Task:
    """Return a list of images, in training with the objects in each."""
    pixels: List[Any] = [torch.rand((3,) + images) for _ in range(rows)]
    args: Tuple[Any, ...] = (pixels,)
    if training:
        classes = options.get("num_classes", 2 if name.startswith("keypointrcnn") else 91)
        args = (pixels, [_objects(name, classes, images) for _ in range(rows)])
    return (
        tuple(map_tensors(args, lambda tensor: tensor.to(device))),
        lambda output: sum(losses.widened(each) for each in output.values()),
        "the sum of the model's own",
    )


def _objects(name: str, classes: int, images: Tuple[int, int]) -> Dict[str, Any]:
    """Return random boxes of 0.1 to 0.5 of the image size, with labels, masks and keypoints."""
    height, width = images
    extent = torch.tensor([width, height], dtype=torch.float32)
    sizes = (0.1 + 0.4 * torch.rand(OBJECTS, 2)) * extent
    corners = torch.rand(OBJECTS, 2) * (extent - sizes)
    boxes = torch.cat([corners, corners + sizes], dim=1)
    objects = {"boxes": boxes, "labels": torch.randint(1, classes, (OBJECTS,))}
    if name.startswith("maskrcnn"):
        objects["masks"] = _masks(boxes, images)
    if name.startswith("keypointrcnn"):
        points = corners[:, None] + torch.rand(OBJECTS, KEYPOINTS, 2) * sizes[:, None]
        objects["keypoints"] = torch.cat([points, torch.ones(OBJECTS, KEYPOINTS, 1)], dim=2)
    return objects


def _masks(boxes: Any, images: Tuple[int, int]) -> Any:
    """Return masks in which each object fills its box."""
    height, width = images
    rows = torch.arange(height)[None, :, None]
    columns = torch.arange(width)[None, None, :]
    left, top, right, bottom = (boxes[:, index, None, None] for index in range(4))
    inside = (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)
    return inside.to(torch.uint8)


DEFAULT_BATCH_SIZE = 8
SIZE = "size"
CLASSIFICATION, DETECTION, SEGMENTATION = TASKS = ("classification", "detection", "segmentation")
FETCHED = ("weights", "weights_backbone", "pretrained", "pretrained_backbone", "progress")


def names() -> List[str]:
    """Return the models of the installed torchvision, task by task."""
    package = _torchvision()
    return [name for task in TASKS for name in _names_of(package, task)]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Build one model; `size` is the image size, other parameters are passed to the model's function."""
    package = _torchvision()
    label = "torchvision/" + name
    task = _task(package, name)
    options = dict(parameters)
    size = options.pop(SIZE, None)
    _check(label, size, options)
    training = mode == "training"
    least = 2 if training else 1
    rows = batch_size or max(
        least, batch_size_for(TORCHVISION_BY_NAME.get(name), device, DEFAULT_BATCH_SIZE)
    )
    if training and rows < 2 and name.startswith(NEED_TWO_IMAGES):
        raise CannotBuild(
            f"{label} cannot be trained with a batch size of 1: it applies batch norm to single pixels",
            hint="give a batch size of at least 2",
        )
    settings, images = settings_and_size(name, task, size)
    module = _make(label, _builder(package, task, name), task, dict(settings, **options))
    if not any("drop" in key or key == "stochastic_depth_prob" for key in options):
        disable_dropout(module)
    if task == DETECTION:
        inputs_and_loss = detection(name, options, rows, images, training, device)
    elif task == SEGMENTATION:
        inputs_and_loss = segmentation(options, rows, images, device)
    else:
        inputs_and_loss = classification(options, rows, images, device)
    args, loss, loss_name = inputs_and_loss
    return BuiltWorkload(
        module.to(device),
        args,
        loss=loss,
        loss_name=loss_name,
        optimizer=losses.sgd(1e-3),
        batch_size=rows,
    )


def _check(label: str, size: Any, options: Dict[str, Any]) -> None:
    require_whole(label, SIZE, size)
    require_whole(label, "num_classes", options.get("num_classes", 2), 2)
    for key in FETCHED:
        if key in options:
            raise CannotBuild(
                f"{label} does not accept the parameter {key}: weights would be downloaded",
                hint=f"remove {key}; all weights are random",
            )


def _make(label: str, builder: Callable[..., Any], task: str, settings: Dict[str, Any]) -> Any:
    none: Dict[str, Any] = {"weights": None}
    if task != CLASSIFICATION:
        none["weights_backbone"] = None
    try:
        return builder(**dict(none, **settings))
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        raise CannotBuild(
            f"{label} does not accept these parameters: {type(error).__name__}: {error}",
            hint=f"{SIZE} is the image size; other parameters are passed to the model's function",
        ) from error


def _task(package: Any, name: str) -> str:
    for task in TASKS:
        if name in _names_of(package, task):
            return task
    version = version_of(package)
    registered = getattr(package.models, "list_models", None)
    if registered is not None and name in registered():
        raise CannotBuild(
            f"torchvision/{name} is not a classification, detection or segmentation model",
            hint="write a Python file with the model and its inputs, and use the suite file",
        )
    raise CannotBuild(
        f"torchvision {version} has no model {name!r}{nearest(name, names())}",
        hint="give a name from torchvision.models.list_models()",
    )


def _module_of(package: Any, task: str) -> Any:
    return package.models if task == CLASSIFICATION else getattr(package.models, task)


def _names_of(package: Any, task: str) -> List[str]:
    """Return the models that torchvision registers for the task; before 0.14 it had no registry."""
    module = _module_of(package, task)
    listing = getattr(package.models, "list_models", None)
    if listing is not None:
        return list(listing(module=module))
    return sorted(key for key in vars(module) if key.islower() and _makes_models(module, key))


def _makes_models(module: Any, key: str) -> bool:
    value = getattr(module, key)
    return callable(value) and not key.startswith("_") and not isinstance(value, type)


def _builder(package: Any, task: str, name: str) -> Callable[..., Any]:
    find = getattr(package.models, "get_model_builder", None)
    builder: Callable[..., Any] = (
        find(name) if find is not None else getattr(_module_of(package, task), name)
    )
    return builder


def _torchvision() -> Any:
    hint = "install the torchvision version that matches the target's torch"
    return import_package("torchvision", hint)
