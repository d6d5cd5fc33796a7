"""The suite `torchvision`: models of classification, detection and segmentation.

Inputs and losses are those of its own training scripts.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.nn import functional

from torchyard.worker.catalog.image_models import TORCHVISION_BY_NAME
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import batch_size_for, is_whole, nearest
from torchyard.worker.suites.training import take_chance_out
from torchyard.worker.workload import Built, CannotBuild, map_tensors

Task = Tuple[Tuple[Any, ...], Callable[[Any], Any], str]

# Height and width of the images that the published weights were made for, where not 224.
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
# About what photographs of the usual data set are; the models scale them to their own size.
DETECTED_SIZE = (480, 640)
# They normalise over the batch after pooling to one pixel, which one image cannot feed.
NEED_TWO_IMAGES = ("deeplabv3", "inception_v3")

OBJECTS = 10
KEYPOINTS = 17
# Shares of the losses of auxiliary heads, as published with the two models.
AUXILIARY = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3}
SEGMENTED_AUXILIARY = 0.5


def settings_and_size(
    name: str, task: str, size: Optional[int]
) -> Tuple[Dict[str, Any], Tuple[int, int]]:
    """What the model's function needs besides the user's wishes, and height and width of images."""
    if task == "detection":
        return {}, ((size, size) if size else DETECTED_SIZE)
    if task == "segmentation":
        return {}, (size or SEGMENTED_SIZE, size or SEGMENTED_SIZE)
    edge = size or IMAGE_SIZES.get(name, USUAL_SIZE)
    settings: Dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        settings["init_weights"] = False  # else they warn that drawing weights takes them long
    if name.startswith("vit_"):
        settings["image_size"] = edge
    if name.startswith("maxvit_"):
        settings["input_size"] = (edge, edge)
    return settings, (edge, edge)


def classification(wishes: Dict[str, Any], rows: int, images: Tuple[int, int], device: Any) -> Task:
    """Images and one class for each; auxiliary heads count with their published shares."""
    targets = torch.randint(wishes.get("num_classes", 1000), (rows,)).to(device)
    pixels = torch.randn((rows, 3) + images).to(device)
    one = losses.cross_entropy(targets)

    def loss(output: Any) -> Any:
        if not isinstance(output, tuple):
            return one(output)
        share = AUXILIARY.get(type(output).__name__, 0.4)
        heads = [head for head in output[1:] if head is not None]
        return one(output[0]) + share * sum(one(head) for head in heads)

    return (pixels,), loss, "cross-entropy"


def segmentation(wishes: Dict[str, Any], rows: int, images: Tuple[int, int], device: Any) -> Task:
    """Images and a class for every pixel; the auxiliary head counts half."""
    pixels = torch.randn((rows, 3) + images).to(device)
    targets = torch.randint(wishes.get("num_classes", 21), (rows,) + images).to(device)

    def one(logits: Any) -> Any:
        return functional.cross_entropy(losses.widened(logits), targets)

    def loss(output: Any) -> Any:
        main = one(output["out"])
        return main + SEGMENTED_AUXILIARY * one(output["aux"]) if "aux" in output else main

    return (pixels,), loss, "cross-entropy of every pixel"


def detection(
    name: str,
    wishes: Dict[str, Any],
    rows: int,
    images: Tuple[int, int],
    training: bool,
    device: Any,
) -> Task:
    """A list of images, in training with a list of what is to be found in each."""
    pixels: List[Any] = [torch.rand((3,) + images) for _ in range(rows)]
    args: Tuple[Any, ...] = (pixels,)
    if training:
        classes = wishes.get("num_classes", 2 if name.startswith("keypointrcnn") else 91)
        args = (pixels, [_objects(name, classes, images) for _ in range(rows)])
    return (
        tuple(map_tensors(args, lambda tensor: tensor.to(device))),
        _sum_of_losses,
        "the sum of the model's own",
    )


def _sum_of_losses(output: Any) -> Any:
    return sum(losses.widened(each) for each in output.values())


def _objects(name: str, classes: int, images: Tuple[int, int]) -> Dict[str, Any]:
    """Boxes of a tenth to half the image, with what else the model learns of them."""
    height, width = images
    extent = torch.tensor([width, height], dtype=torch.float32)
    sides = (0.1 + 0.4 * torch.rand(OBJECTS, 2)) * extent
    corners = torch.rand(OBJECTS, 2) * (extent - sides)
    boxes = torch.cat([corners, corners + sides], dim=1)
    found = {"boxes": boxes, "labels": torch.randint(1, classes, (OBJECTS,))}
    if name.startswith("maskrcnn"):
        found["masks"] = _masks(boxes, images)
    if name.startswith("keypointrcnn"):
        points = corners[:, None] + torch.rand(OBJECTS, KEYPOINTS, 2) * sides[:, None]
        found["keypoints"] = torch.cat([points, torch.ones(OBJECTS, KEYPOINTS, 1)], dim=2)
    return found


def _masks(boxes: Any, images: Tuple[int, int]) -> Any:
    """Each object fills its box."""
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
    """The models of the installed torchvision, task by task."""
    package = _torchvision()
    return [name for task in TASKS for name in _names_of(package, task)]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make one model; `size` is the image's, every other parameter goes to the model's function."""
    package = _torchvision()
    label = "torchvision/" + name
    task = _task(package, name)
    wishes = dict(parameters)
    size = wishes.pop(SIZE, None)
    _check(label, size, wishes)
    training = mode == "training"
    least = 2 if training else 1
    rows = batch_size or max(
        least, batch_size_for(TORCHVISION_BY_NAME.get(name), device, DEFAULT_BATCH_SIZE)
    )
    if training and rows < 2 and name.startswith(NEED_TWO_IMAGES):
        raise CannotBuild(
            f"{label} cannot be trained with a batch of one image: it normalises single pixels",
            hint="give a batch size from 2 up",
        )
    settings, images = settings_and_size(name, task, size)
    module = _make(label, _builder(package, task, name), task, dict(settings, **wishes))
    if not any("drop" in key or key == "stochastic_depth_prob" for key in wishes):
        take_chance_out(module)
    if task == DETECTION:
        made = detection(name, wishes, rows, images, training, device)
    elif task == SEGMENTATION:
        made = segmentation(wishes, rows, images, device)
    else:
        made = classification(wishes, rows, images, device)
    args, loss, said = made
    return Built(
        module.to(device),
        args,
        loss=loss,
        loss_said=said,
        optimizer=losses.sgd(1e-3),
        batch_size=rows,
    )


def _check(label: str, size: Any, wishes: Dict[str, Any]) -> None:
    if size is not None and not is_whole(size):
        raise CannotBuild(
            f"the parameter {SIZE} of {label} is {size!r}",
            hint="give a whole number from 1 up",
        )
    for key in FETCHED:
        if key in wishes:
            raise CannotBuild(
                f"{label} takes no parameter {key}: weights would be fetched",
                hint=f"leave out {key}; all weights are random",
            )
    if "num_classes" in wishes and not is_whole(wishes["num_classes"], 2):
        raise CannotBuild(
            f"the parameter num_classes of {label} is {wishes['num_classes']!r}",
            hint="give a whole number from 2 up",
        )


def _make(label: str, builder: Callable[..., Any], task: str, settings: Dict[str, Any]) -> Any:
    none: Dict[str, Any] = {"weights": None}
    if task != CLASSIFICATION:
        none["weights_backbone"] = None
    try:
        return builder(**dict(none, **settings))
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        raise CannotBuild(
            f"{label} refuses these parameters: {type(error).__name__}: {error}",
            hint=f"{SIZE} is the image's size; other parameters go to the function of the model",
        ) from error


def _task(package: Any, name: str) -> str:
    for task in TASKS:
        if name in _names_of(package, task):
            return task
    version = getattr(package, "__version__", "of unknown version")
    registered = getattr(package.models, "list_models", None)
    if registered is not None and name in registered():
        raise CannotBuild(
            f"torchvision/{name} is neither for classification, detection nor segmentation",
            hint="write a small Python file with the model and its inputs, and use the suite file",
        )
    raise CannotBuild(
        f"torchvision {version} has no model {name!r}{nearest(name, names())}",
        hint="give a name from torchvision.models.list_models()",
    )


def _module_of(package: Any, task: str) -> Any:
    return package.models if task == CLASSIFICATION else getattr(package.models, task)


def _names_of(package: Any, task: str) -> List[str]:
    """What torchvision registers for the task; before 0.14 it kept no register."""
    module = _module_of(package, task)
    listing = getattr(package.models, "list_models", None)
    if listing is not None:
        return list(listing(module=module))
    return sorted(key for key in vars(module) if key.islower() and _makes_models(module, key))


def _makes_models(module: Any, key: str) -> bool:
    found = getattr(module, key)
    return callable(found) and not key.startswith("_") and not isinstance(found, type)


def _builder(package: Any, task: str, name: str) -> Callable[..., Any]:
    find = getattr(package.models, "get_model_builder", None)
    found: Callable[..., Any] = (
        find(name) if find is not None else getattr(_module_of(package, task), name)
    )
    return found


def _torchvision() -> Any:
    try:
        import torchvision
    except Exception as error:  # one that does not fit its torch raises RuntimeError
        raise CannotBuild(
            f"the target has no torchvision package that can be imported: {error}",
            hint="install the torchvision that belongs to the target's torch",
        ) from error
    return torchvision
