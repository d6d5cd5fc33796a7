"""The models that the suite `torchvision` runs when it is run whole, as data: no torch.

Classification, detection and segmentation: all that torchvision 0.21 registers for them. Batch
sizes of the models that pytorch/benchmark has too are those of the harness's lists for it; the
others are sized alike by what one image costs. A model of a newer torchvision can be named.
"""

from typing import Dict, List, Tuple

from torchyard.worker.catalog_entry import BOTH, Listed

# Name, batch size on a large GPU, batch size on a large server.
_CLASSIFICATION: List[Tuple[str, int, int]] = [
    ("alexnet", 1024, 128),
    ("convnext_base", 64, 16),
    ("convnext_large", 64, 16),
    ("convnext_small", 128, 32),
    ("convnext_tiny", 128, 32),
    ("densenet121", 64, 512),
    ("densenet161", 64, 16),
    ("densenet169", 128, 32),
    ("densenet201", 64, 16),
    ("efficientnet_b0", 256, 64),
    ("efficientnet_b1", 128, 32),
    ("efficientnet_b2", 128, 32),
    ("efficientnet_b3", 128, 32),
    ("efficientnet_b4", 64, 16),
    ("efficientnet_b5", 16, 4),
    ("efficientnet_b6", 16, 4),
    ("efficientnet_b7", 16, 4),
    ("efficientnet_v2_l", 64, 16),
    ("efficientnet_v2_m", 64, 16),
    ("efficientnet_v2_s", 128, 32),
    ("googlenet", 128, 32),
    ("inception_v3", 128, 32),
    ("maxvit_t", 64, 16),
    ("mnasnet0_5", 256, 64),
    ("mnasnet0_75", 256, 64),
    ("mnasnet1_0", 256, 32),
    ("mnasnet1_3", 256, 64),
    ("mobilenet_v2", 128, 16),
    ("mobilenet_v3_large", 256, 32),
    ("mobilenet_v3_small", 256, 64),
    ("regnet_x_16gf", 64, 16),
    ("regnet_x_1_6gf", 128, 32),
    ("regnet_x_32gf", 64, 16),
    ("regnet_x_3_2gf", 128, 32),
    ("regnet_x_400mf", 256, 64),
    ("regnet_x_800mf", 256, 64),
    ("regnet_x_8gf", 128, 32),
    ("regnet_y_128gf", 16, 4),
    ("regnet_y_16gf", 64, 16),
    ("regnet_y_1_6gf", 128, 32),
    ("regnet_y_32gf", 64, 16),
    ("regnet_y_3_2gf", 128, 32),
    ("regnet_y_400mf", 256, 64),
    ("regnet_y_800mf", 256, 64),
    ("regnet_y_8gf", 128, 32),
    ("resnet101", 128, 32),
    ("resnet152", 64, 32),
    ("resnet18", 512, 256),
    ("resnet34", 256, 64),
    ("resnet50", 128, 256),
    ("resnext101_32x8d", 64, 16),
    ("resnext101_64x4d", 64, 16),
    ("resnext50_32x4d", 128, 256),
    ("shufflenet_v2_x0_5", 256, 64),
    ("shufflenet_v2_x1_0", 512, 64),
    ("shufflenet_v2_x1_5", 256, 64),
    ("shufflenet_v2_x2_0", 256, 64),
    ("squeezenet1_0", 256, 64),
    ("squeezenet1_1", 512, 16),
    ("swin_b", 64, 16),
    ("swin_s", 64, 16),
    ("swin_t", 128, 32),
    ("swin_v2_b", 64, 16),
    ("swin_v2_s", 64, 16),
    ("swin_v2_t", 64, 16),
    ("vgg11", 128, 32),
    ("vgg11_bn", 128, 32),
    ("vgg13", 128, 32),
    ("vgg13_bn", 128, 32),
    ("vgg16", 128, 64),
    ("vgg16_bn", 128, 32),
    ("vgg19", 128, 32),
    ("vgg19_bn", 128, 32),
    ("vit_b_16", 128, 32),
    ("vit_b_32", 128, 32),
    ("vit_h_14", 16, 4),
    ("vit_l_16", 64, 16),
    ("vit_l_32", 64, 16),
    ("wide_resnet101_2", 64, 16),
    ("wide_resnet50_2", 128, 32),
]
_DETECTION: List[Tuple[str, int, int]] = [
    ("fasterrcnn_mobilenet_v3_large_320_fpn", 16, 4),
    ("fasterrcnn_mobilenet_v3_large_fpn", 8, 2),
    ("fasterrcnn_resnet50_fpn", 4, 1),
    ("fasterrcnn_resnet50_fpn_v2", 4, 1),
    ("fcos_resnet50_fpn", 4, 1),
    ("keypointrcnn_resnet50_fpn", 4, 1),
    ("maskrcnn_resnet50_fpn", 4, 1),
    ("maskrcnn_resnet50_fpn_v2", 4, 1),
    ("retinanet_resnet50_fpn", 4, 1),
    ("retinanet_resnet50_fpn_v2", 4, 1),
    ("ssd300_vgg16", 16, 4),
    ("ssdlite320_mobilenet_v3_large", 32, 8),
]
_SEGMENTATION: List[Tuple[str, int, int]] = [
    ("deeplabv3_mobilenet_v3_large", 16, 4),
    ("deeplabv3_resnet101", 8, 2),
    ("deeplabv3_resnet50", 8, 2),
    ("fcn_resnet101", 8, 2),
    ("fcn_resnet50", 8, 2),
    ("lraspp_mobilenet_v3_large", 32, 8),
]
_TASKS = (
    ("classification, cross-entropy", _CLASSIFICATION),
    ("detection, the model's own losses", _DETECTION),
    ("segmentation, cross-entropy of every pixel", _SEGMENTATION),
)

TORCHVISION: List[Listed] = [
    Listed(name, BOTH, about, gpu, cpu) for about, rows in _TASKS for name, gpu, cpu in rows
]
TORCHVISION_BY_NAME: Dict[str, Listed] = {each.name: each for each in TORCHVISION}
