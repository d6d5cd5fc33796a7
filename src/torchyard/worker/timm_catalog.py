"""The models that the suite `timm` runs when it is run whole, as data: no torch.

Both lists are those of the benchmark harness of PyTorch itself, one for GPUs and one for CPUs, with
its batch sizes after its own divisions. Any other name of timm's can be named.
"""

from typing import Dict, List, Optional, Tuple

from torchyard.worker.catalog_entry import BOTH, Listed

# Name, batch size on a large GPU, batch size on a large server; None: not in that list.
_ROWS: List[Tuple[str, Optional[int], Optional[int]]] = [
    ("adv_inception_v3", 128, 128),
    ("beit_base_patch16_224", 64, 64),
    ("botnet26t_256", None, 128),
    ("cait_m36_384", None, 4),
    ("coat_lite_mini", None, 32),
    ("convit_base", None, 64),
    ("convmixer_768_32", None, 2),
    ("convnext_base", None, 64),
    ("convnextv2_nano.fcmae_ft_in22k_in1k", 128, None),
    ("crossvit_9_240", None, 32),
    ("cspdarknet53", None, 64),
    ("deit_base_distilled_patch16_224", 64, 64),
    ("deit_tiny_patch16_224.fb_in1k", 128, None),
    ("dm_nfnet_f0", 128, 128),
    ("dpn107", None, 32),
    ("eca_botnext26ts_256", None, 128),
    ("eca_halonext26ts", None, 128),
    ("fbnetc_100", None, 32),
    ("fbnetv3_b", None, 32),
    ("gernet_l", None, 128),
    ("ghostnet_100", 512, 128),
    ("gluon_inception_v3", None, 128),
    ("gmixer_24_224", None, 16),
    ("gmlp_s16_224", None, 128),
    ("hrnet_w18", None, 128),
    ("inception_v3", 128, 128),
    ("jx_nest_base", None, 32),
    ("lcnet_050", None, 64),
    ("mixer_b16_224", None, 128),
    ("mixnet_l", None, 128),
    ("mnasnet_100", None, 32),
    ("mobilenetv2_100", 128, 32),
    ("mobilenetv3_large_100", 512, 32),
    ("mobilevit_s", 64, 256),
    ("nfnet_l0", 128, 128),
    ("pnasnet5large", None, 16),
    ("poolformer_m36", None, 64),
    ("repvgg_a2", 128, 128),
    ("res2net101_26w_4s", None, 64),
    ("res2net50_14w_8s", None, 128),
    ("res2next50", None, 128),
    ("resnest101e", None, 64),
    ("rexnet_100", None, 128),
    ("sebotnet33ts_256", None, 64),
    ("selecsls42b", None, 128),
    ("spnasnet_100", None, 32),
    ("swin_base_patch4_window7_224", 64, 64),
    ("swsl_resnext101_32x16d", None, 32),
    ("tf_efficientnet_b0", 128, 128),
    ("tf_mixnet_l", None, 32),
    ("tnt_s_patch16_224", None, 32),
    ("twins_pcpvt_base", None, 64),
    ("visformer_small", 128, 128),
    ("vit_base_patch14_dinov2.lvd142m", 128, None),
    ("vit_base_patch16_224", None, 64),
    ("vit_base_patch16_siglip_256", 128, None),
    ("volo_d1_224", None, 64),
    ("xcit_large_24_p8_224", None, 5),
]

TIMM: List[Listed] = [
    Listed(name, BOTH, "images, cross-entropy", gpu, cpu) for name, gpu, cpu in _ROWS
]
TIMM_BY_NAME: Dict[str, Listed] = {each.name: each for each in TIMM}

# What timm calls these now. Most of its versions still take the old name and say so; for others,
# the row can name the new one.
RENAMED: Dict[str, str] = {
    "adv_inception_v3": "inception_v3.tf_adv_in1k",
    "gluon_inception_v3": "inception_v3.gluon_in1k",
    "jx_nest_base": "nest_base_jx",
    "swsl_resnext101_32x16d": "resnext101_32x16d.fb_swsl_ig1b_ft_in1k",
}
