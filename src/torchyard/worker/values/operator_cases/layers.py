"""Layers of networks: attention, embeddings, recurrent networks, normalisation and softmax.

Embeddings sum gradients into zeros, which are needed.
"""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import TABLE, Case, Draw, case, function_case, learned

_SDPA = "nn.functional.scaled_dot_product_attention"


def _heads(draw: Draw) -> List[Any]:
    return [draw.learned(2, 4, 128, 32) for _ in range(3)]


def _module(draw: Draw) -> List[Any]:
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    return [draw.on_device(module), draw.learned(4, 64, 64)]


def _layer(draw: Draw) -> List[Any]:
    module = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return [draw.on_device(module), draw.learned(4, 64, 64)]


def _decoder(draw: Draw) -> List[Any]:
    module = torch.nn.TransformerDecoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return [draw.on_device(module), draw.learned(4, 64, 64), draw.learned(4, 64, 64)]


ATTENTION_CASES: List[Case] = [
    case("attention", _SDPA, _heads),
    case("attention.causal", _SDPA, _heads, is_causal=True),
    case("attention.scale", _SDPA, _heads, scale=0.5),
    case("attention.bool_mask", _SDPA, lambda d: [*_heads(d), d.bools(2, 1, 128, 128)]),
    case("attention.float_mask", _SDPA, lambda d: [*_heads(d), d.floats(2, 1, 128, 128)]),
    case("attention.learned_mask", _SDPA, lambda d: [*_heads(d), d.learned(2, 4, 128, 128)]),
    case(
        "attention.grouped",
        _SDPA,
        learned((2, 4, 128, 32), (2, 2, 128, 32), (2, 2, 128, 32)),
        enable_gqa=True,
    ),
    case("attention.math", "_scaled_dot_product_attention_math", _heads),
    case("multi_head_attention", lambda m, x: m(x, x, x, need_weights=False)[0], _module),
    case("multi_head_attention.weights", lambda m, x: m(x, x, x), _module),
    case("transformer_encoder_layer", lambda m, x: m(x), _layer),
    case("transformer_decoder_layer", lambda m, x, y: m(x, y), _decoder),
]


_F = "nn.functional."


def _words(draw: Draw) -> List[Any]:
    return [draw.integers(500, 16, 32), draw.learned(500, 64)]


def _bag(mode: str, **options: Any) -> Case:
    return case("embedding_bag." + mode, _F + "embedding_bag", _words, mode=mode, **options)


EMBEDDING_CASES: List[Case] = [
    function_case("embedding", _words),
    function_case("embedding.padding", _words, padding_idx=3),
    function_case("embedding.by_frequency", _words, scale_grad_by_freq=True),
    function_case("embedding.sparse", _words, sparse=True),
    function_case("embedding.all_rows", lambda d: [d.order(512), d.learned(512, 64)]),
    _bag("sum"),
    _bag("mean"),
    _bag("max"),
    function_case("embedding_bag.padding", _words, mode="sum", padding_idx=3),
    case(
        "embedding_bag.offsets",
        lambda i, w, at: torch.nn.functional.embedding_bag(i, w, at, mode="sum"),
        lambda d: [d.integers(500, 512), d.learned(500, 64), d.order(32).sort().values * 16],
    ),
    case(
        "embedding_bag.weights",
        lambda i, w, s: torch.nn.functional.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        lambda d: [*_words(d), d.learned(16, 32)],
    ),
]


def _sequence(kind: str, **options: Any) -> Callable[[Draw], List[Any]]:
    def make(draw: Draw) -> List[Any]:
        module = getattr(torch.nn, kind)(64, 64, **options)
        return [draw.on_device(module), draw.learned(12, 32, 64)]

    return make


def _cell(kind: str) -> Callable[[Draw], List[Any]]:
    def make(draw: Draw) -> List[Any]:
        return [draw.on_device(getattr(torch.nn, kind)(64, 128)), draw.learned(256, 64)]

    return make


def _call(module: Any, x: Any) -> Any:
    return module(x)


RNN_CASES: List[Case] = [
    case("lstm", _call, _sequence("LSTM")),
    case("lstm.two_ways", _call, _sequence("LSTM", bidirectional=True)),
    case("lstm.projected", _call, _sequence("LSTM", proj_size=32)),
    case("gru", _call, _sequence("GRU")),
    case("gru.two_layers", _call, _sequence("GRU", num_layers=2)),
    case("rnn_tanh", _call, _sequence("RNN")),
    case("rnn_relu", _call, _sequence("RNN", nonlinearity="relu")),
    case("lstm_cell", _call, _cell("LSTMCell")),
    case("gru_cell", _call, _cell("GRUCell")),
    case("rnn_cell", _call, _cell("RNNCell")),
]


def _with_statistics(draw: Draw) -> List[Any]:
    return [
        draw.learned(4, 16, 32, 32),
        draw.floats(16),
        draw.between(0.5, 1.5, 16),
        draw.learned(16),
        draw.learned(16),
    ]


_image = learned((4, 16, 32, 32))
NORM_CASES: List[Case] = [
    function_case("batch_norm.training", _with_statistics, training=True),
    function_case("batch_norm.inference", _with_statistics, training=False),
    case(
        "batch_norm.plain",
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        _image,
    ),
    case(
        "batch_norm.1d",
        lambda x, w, b: torch.nn.functional.batch_norm(x, None, None, w, b, training=True),
        learned((512, 128), (128,), (128,)),
    ),
    function_case("instance_norm", _image),
    case(
        "instance_norm.affine",
        lambda x, w, b: torch.nn.functional.instance_norm(x, weight=w, bias=b),
        lambda d: [*_image(d), d.learned(16), d.learned(16)],
    ),
    function_case("group_norm", _image, num_groups=4),
    case(
        "group_norm.affine",
        lambda x, w, b: torch.nn.functional.group_norm(x, 4, w, b),
        lambda d: [*_image(d), d.learned(16), d.learned(16)],
    ),
    function_case("layer_norm", TABLE, normalized_shape=(256,)),
    case(
        "layer_norm.affine",
        lambda x, w, b: torch.nn.functional.layer_norm(x, (256,), w, b),
        lambda d: [*TABLE(d), d.learned(256), d.learned(256)],
    ),
    case(
        "rms_norm",
        lambda x, w: torch.nn.functional.rms_norm(x, (256,), w),
        lambda d: [*TABLE(d), d.learned(256)],
    ),
    function_case("local_response_norm", _image, size=5),
    function_case("normalize", TABLE),
    function_case("normalize.p1", TABLE, p=1.0),
    case("renorm", "renorm", TABLE, p=2, dim=0, maxnorm=5.0),
    function_case("softmax", TABLE, dim=1),
    function_case("softmax.first", TABLE, dim=0),
    function_case("log_softmax", TABLE, dim=1),
    function_case("log_softmax.first", TABLE, dim=0),
    function_case("softmin", TABLE, dim=1),
    case("safe_softmax", "_safe_softmax", TABLE, dim=1),
    function_case("cosine_similarity", lambda d: [*TABLE(d), *TABLE(d)]),
    function_case("pairwise_distance", lambda d: [*TABLE(d), *TABLE(d)]),
    case("cdist", "cdist", learned((256, 32), (256, 32))),
    case("cdist.p1", "cdist", learned((128, 16), (128, 16)), p=1.0),
    function_case("pdist", learned((256, 16))),
]


def _pair(draw: Draw) -> List[object]:
    return [draw.learned(1024, 512), draw.floats(1024, 512)]


def _classes(draw: Draw) -> List[object]:
    return [draw.learned(512, 128), draw.integers(128, 512)]


def _image_classes(draw: Draw) -> List[object]:
    return [draw.learned(4, 16, 96, 96), draw.integers(16, 4, 96, 96)]


def _probabilities(draw: Draw) -> List[object]:
    return [draw.learned_between(0.05, 0.95, 512, 128), draw.between(0.0, 1.0, 512, 128)]


def _labels(draw: Draw) -> List[object]:
    """The first labels of each row count; a -1 ends them."""
    labels = draw.integers(128, 256, 128)
    labels[:, 3:] = -1
    return [draw.learned(256, 128), labels]


def _rows(draw: Draw) -> List[object]:
    return [draw.learned(512, 128), draw.learned(512, 128), draw.signs(512)]


LOSS_CASES: List[Case] = [
    function_case("mse_loss", _pair),
    function_case("mse_loss.sum", _pair, reduction="sum"),
    function_case("mse_loss.none", _pair, reduction="none"),
    function_case("l1_loss", _pair),
    function_case("l1_loss.none", _pair, reduction="none"),
    function_case("smooth_l1_loss", _pair),
    function_case("smooth_l1_loss.none", _pair, reduction="none"),
    function_case("huber_loss", _pair),
    function_case("huber_loss.none", _pair, reduction="none", delta=0.5),
    function_case("nll_loss", _classes),
    function_case("nll_loss.none", _classes, reduction="none"),
    function_case("nll_loss.ignore_index", _classes, ignore_index=3),
    function_case("nll_loss.weight", lambda d: [*_classes(d), d.between(0.1, 1.0, 128)]),
    case("nll_loss2d", _F + "nll_loss", _image_classes),
    case("nll_loss2d.none", _F + "nll_loss", _image_classes, reduction="none"),
    case("nll_loss2d.ignore_index", _F + "nll_loss", _image_classes, ignore_index=3),
    function_case("cross_entropy", _classes),
    function_case("cross_entropy.smoothing", _classes, label_smoothing=0.1),
    function_case("cross_entropy.image", _image_classes),
    function_case(
        "cross_entropy.probabilities",
        lambda d: [d.learned(512, 128), d.floats(512, 128).softmax(1)],
    ),
    function_case("kl_div", _pair, reduction="batchmean"),
    function_case("kl_div.log_target", _pair, reduction="sum", log_target=True),
    function_case("poisson_nll_loss", _pair),
    function_case("poisson_nll_loss.full", _probabilities, full=True),
    function_case(
        "gaussian_nll_loss", lambda d: [*_pair(d), d.learned_between(0.1, 1.0, 1024, 512)]
    ),
    function_case("binary_cross_entropy", _probabilities),
    function_case("binary_cross_entropy.none", _probabilities, reduction="none"),
    function_case(
        "binary_cross_entropy_with_logits",
        lambda d: [d.learned(512, 128), d.between(0.0, 1.0, 512, 128)],
    ),
    function_case("soft_margin_loss", lambda d: [d.learned(512, 128), d.signs(512, 128)]),
    function_case("hinge_embedding_loss", lambda d: [d.learned(512, 128), d.signs(512, 128)]),
    function_case("multi_margin_loss", _classes),
    function_case("multi_margin_loss.none", _classes, reduction="none", p=2),
    function_case("multilabel_margin_loss", _labels),
    function_case("multilabel_margin_loss.none", _labels, reduction="none"),
    function_case(
        "multilabel_soft_margin_loss", lambda d: [d.learned(512, 128), d.bools(512, 128).float()]
    ),
    function_case("cosine_embedding_loss", _rows),
    function_case(
        "margin_ranking_loss", lambda d: [d.learned(65536), d.learned(65536), d.signs(65536)]
    ),
    function_case("triplet_margin_loss", learned((512, 128), (512, 128), (512, 128))),
    function_case(
        "ctc_loss",
        lambda d: [
            d.floats(40, 16, 32).log_softmax(2).requires_grad_(),
            d.integers_from(1, 32, 16, 12),
            d.integers_from(40, 41, 16),
            d.integers_from(6, 13, 16),
        ],
    ),
]


def _parameters(draw: Draw) -> List[Any]:
    parameters = [draw.floats(256, 128).requires_grad_() for _ in range(2)]
    for parameter in parameters:
        parameter.grad = draw.floats(256, 128)
    return parameters


def _step(kind: str, **options: Any) -> Callable[..., Any]:
    def step(*parameters: Any) -> Any:
        optimiser = getattr(torch.optim, kind)(list(parameters), lr=0.01, **options)
        optimiser.step()
        optimiser.step()

    return step


OPTIMISER_CASES: List[Case] = [
    case("sgd", _step("SGD"), _parameters),
    case("sgd.momentum", _step("SGD", momentum=0.9), _parameters),
    case("adam", _step("Adam"), _parameters),
    case("adamw", _step("AdamW"), _parameters),
    case("adagrad", _step("Adagrad"), _parameters),
    case("rmsprop", _step("RMSprop"), _parameters),
    case("clip_grad_norm", lambda *p: torch.nn.utils.clip_grad_norm_(p, 1.0), _parameters),
]
