"""torchvision networks with random parameters, exported by both of PyTorch's exporters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models import detection, segmentation

from benchmarks.exporters.from_torch import randomise, write
from benchmarks.exporters.written import Feeds, Maker, make_all

SIZE = 160
"""Image size. It is smaller than in training, because only the kernels are compared."""


def classifier(
    build: Callable[..., nn.Module], path: Path, *, dynamo: bool, size: int = SIZE, **options: Any
) -> Sequence[Feeds]:
    """Export a classifier that maps images (batch, 3, size, size) to logits.

    The batch is dynamic with the tracer, and 1 with dynamo.
    """
    torch.manual_seed(0)
    model = build(weights=None, **options)
    randomise(model)
    images = [torch.randn(batch, 3, size, size) for batch in ((1,) if dynamo else (1, 2))]
    axes = {} if dynamo else {"x": {0: "batch"}}
    return write(First(model), [{"x": image} for image in images], path, axes, dynamo)


def segmenter(build: Callable[..., nn.Module], path: Path, *, dynamo: bool) -> Sequence[Feeds]:
    """Export a segmentation network that maps an image to class scores per pixel.

    The image has shape (1, 3, height, width). Height and width are dynamic.
    """
    torch.manual_seed(0)
    model = build(weights=None, weights_backbone=None)
    randomise(model)
    images = [torch.randn(1, 3, *shape) for shape in ((128, 160), (96, 97))]
    axes = {"x": {2: "height", 3: "width"}}
    return write(First(model), [{"x": image} for image in images], path, axes, dynamo)


def detector(build: Callable[..., nn.Module], path: Path) -> Sequence[Feeds]:
    """Export a detector that maps one image to boxes, labels and scores.

    The boxes are those after non-maximum suppression; their number depends on the image. Batch
    normalisations are fitted to random images, and the weights of the score layers have a larger
    deviation than by default. Otherwise features would hardly differ between positions, and
    rounding errors would determine the order of the boxes.
    """
    torch.manual_seed(0)
    model = build(weights=None, weights_backbone=None, num_classes=5)
    randomise(model)
    for name, module in model.named_modules():
        scores = "cls" in name or "classification" in name
        if scores and isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, a=1.25)
    images = nn.functional.interpolate(torch.rand(4, 3, 13, 13), (SIZE, SIZE), mode="bicubic")
    model.eval()
    normalisations = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for module in normalisations:
        module.momentum = 1.0
        module.train()
    model(list(images))
    return write(Detections(model), [{"x": images[:1]}], path, {}, False)


class First(nn.Module):  # type: ignore[misc]  # torch is not installed for mypy
    """Wraps a model so that it returns only its main output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        result = self.model(x)
        return result["out"] if isinstance(result, dict) else result


class Detections(nn.Module):  # type: ignore[misc]  # as above
    """Wraps a detector so that it returns boxes, labels and scores of a single image as a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        (found,) = self.model(x)
        return found["boxes"], found["labels"], found["scores"]


_m = torchvision.models
_BOTH = {
    "alexnet": partial(classifier, _m.alexnet, size=224),
    "squeezenet": partial(classifier, _m.squeezenet1_1),
    "mnasnet": partial(classifier, _m.mnasnet0_5),
    "mobilenet-v3": partial(classifier, _m.mobilenet_v3_small),
    "shufflenet-v2": partial(classifier, _m.shufflenet_v2_x0_5),
    "efficientnet-v2": partial(classifier, _m.efficientnet_v2_s),
    "regnet": partial(classifier, _m.regnet_y_400mf),
    "convnext": partial(classifier, _m.convnext_tiny),
    "resnext": partial(classifier, _m.resnext50_32x4d),
    "swin": partial(classifier, _m.swin_t, size=224),
    "swin-v2": partial(classifier, _m.swin_v2_t, size=224),
    "maxvit": partial(classifier, _m.maxvit_t, size=224),
    "vit": partial(classifier, _m.vit_b_32, size=224),
    "googlenet": partial(classifier, _m.googlenet, init_weights=True, aux_logits=False),
    "inception-v3": partial(
        classifier, _m.inception_v3, init_weights=True, aux_logits=False, size=128
    ),
    "densenet": partial(classifier, _m.densenet121),
    "lraspp": partial(segmenter, segmentation.lraspp_mobilenet_v3_large),
    "deeplab-v3": partial(segmenter, segmentation.deeplabv3_mobilenet_v3_large),
    "fcn": partial(segmenter, segmentation.fcn_resnet50),
}

MAKERS: dict[str, Maker] = {
    **{f"tv-{name}": partial(maker, dynamo=False) for name, maker in _BOTH.items()},
    **{f"tv-{name}-dynamo": partial(maker, dynamo=True) for name, maker in _BOTH.items()},
    "tv-ssdlite": partial(detector, detection.ssdlite320_mobilenet_v3_large),
    "tv-retinanet": partial(detector, detection.retinanet_resnet50_fpn),
    "tv-faster-rcnn": partial(detector, detection.fasterrcnn_mobilenet_v3_large_320_fpn),
    "tv-keypoint-rcnn": partial(detector, detection.keypointrcnn_resnet50_fpn),
}

if __name__ == "__main__":
    make_all(MAKERS)
