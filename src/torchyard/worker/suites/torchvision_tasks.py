"""Inputs and losses of torchvision's tasks, as its own training scripts have them.

All of it is drawn on the CPU and moved to the device. Knows no models, only the names of those that
are unlike the others of their task.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.nn import functional

from torchyard.worker.built import map_tensors
from torchyard.worker.suites import losses

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
