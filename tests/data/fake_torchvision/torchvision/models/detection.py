"""Tiny models of detection: lists of images in, losses or lists of findings out."""

from typing import Any

import torch
from torch import nn


class TinyDetector(nn.Module):  # type: ignore[misc]  # torch is seen as Any
    """Its losses touch everything that it is given to learn from."""

    def __init__(self, num_classes: int, wanted: tuple[str, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.num_classes = num_classes
        self.wanted = wanted

    def forward(self, images: list[Any], targets: list[dict[str, Any]] | None = None) -> Any:
        means = torch.stack([self.stem(image[None]).mean() for image in images])
        if not self.training:
            return [{"boxes": image.new_zeros(0, 4)} for image in images]
        assert targets is not None
        assert len(targets) == len(images)
        for image, target in zip(images, targets, strict=True):
            self.check(image, target)
        return {"loss_classifier": means.square().mean(), "loss_box_reg": (means - 1).abs().mean()}

    def check(self, image: Any, target: dict[str, Any]) -> None:
        boxes, labels = target["boxes"], target["labels"]
        assert set(target) == {"boxes", "labels", *self.wanted}
        assert bool((boxes[:, 2:] > boxes[:, :2]).all())
        assert bool((boxes >= 0).all())
        assert float(boxes[:, 2].max()) <= image.shape[2]
        assert float(boxes[:, 3].max()) <= image.shape[1]
        assert int(labels.min()) >= 1
        assert int(labels.max()) < self.num_classes
        if "masks" in target:
            areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
            assert target["masks"].shape == (len(boxes), *image.shape[1:])
            filled = target["masks"].sum(dim=(1, 2))
            assert bool(((filled - areas).abs() < 0.2 * areas + 20).all())
        if "keypoints" in target:
            points = target["keypoints"]
            assert points.shape == (len(boxes), 17, 3)
            assert bool((points[:, :, :2] >= boxes[:, None, :2]).all())
            assert bool((points[:, :, :2] <= boxes[:, None, 2:]).all())


def maskrcnn_tiny(*, weights: None, weights_backbone: None, num_classes: int = 91) -> TinyDetector:
    assert weights is weights_backbone is None
    return TinyDetector(num_classes, ("masks",))


def keypointrcnn_tiny(
    *, weights: None, weights_backbone: None, num_classes: int = 2
) -> TinyDetector:
    assert weights is weights_backbone is None
    return TinyDetector(num_classes, ("keypoints",))
