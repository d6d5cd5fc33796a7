"""Build models of the target's transformers with random weights and random inputs.

Inputs are chosen by kind of input and by the task in the class's name.
"""

import inspect
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from torchyard.worker.catalog.huggingface_models import BY_NAME, HuggingFaceModel
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import batch_size_for, nearest
from torchyard.worker.suites.huggingface import configuration as huggingface_file
from torchyard.worker.suites.huggingface.configuration import make_config
from torchyard.worker.workload import Built, CannotBuild, map_tensors

CHOICES = 4
SPECIAL_TOKENS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "decoder_start_token_id",
)


def make_inputs(
    label: str, module: Any, length: int, batch: int, training: bool
) -> Tuple[Dict[str, Any], bool]:
    """Named inputs, and whether labels are among those that the model takes for training."""
    config, name = module.config, type(module).__name__
    accepted = set(inspect.signature(module.forward).parameters)
    inputs = _features(label, module, accepted, length, batch)
    if "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(config, (batch, _decoder_length(config, length)))
    labels = _labels(name, config, accepted, inputs, batch)
    if training:
        inputs.update(labels)
    return inputs, bool(labels)


def _features(
    label: str, module: Any, accepted: Set[str], length: int, batch: int
) -> Dict[str, Any]:
    config, name = module.config, type(module).__name__
    kind = getattr(module, "main_input_name", "input_ids")
    found: Dict[str, Any] = {}
    if kind == "input_ids" or ("input_ids" in accepted and "return_loss" in accepted):
        shape = (batch, CHOICES, length) if "ForMultipleChoice" in name else (batch, length)
        tokens = _tokens(config, shape)
        end = getattr(config, "eos_token_id", None)
        if isinstance(end, int) and getattr(config, "is_encoder_decoder", False):
            # Classifiers of this kind read the answer at the end token, one in every row.
            tokens[..., -1] = min(end, _vocabulary(config) - 1)
        found["input_ids"] = tokens
    if kind == "pixel_values" or ("pixel_values" in accepted and "return_loss" in accepted):
        found["pixel_values"] = torch.randn(_image_shape(config, batch))
    if kind == "input_values":
        found[kind] = torch.randn(_sound_shape(config, length, batch))
    if kind == "input_features":
        found[kind] = torch.randn(_spectrum_shape(label, config, length, batch))
    if not found:
        raise CannotBuild(
            f"{label} wants inputs of the kind {kind!r}, which are not known here",
            hint="write a small Python file with the model and its inputs, and use the suite file",
        )
    return found


def _tokens(config: Any, shape: Tuple[int, ...]) -> Any:
    vocabulary = _vocabulary(config)
    text = getattr(config, "text_config", None) or config
    special = {getattr(text, key, None) for key in SPECIAL_TOKENS}
    plain: List[int] = [value for value in range(vocabulary) if value not in special]
    if not plain:
        plain = list(range(vocabulary))
    return torch.tensor(plain)[torch.randint(len(plain), shape)]


def _vocabulary(config: Any) -> int:
    text = getattr(config, "text_config", None) or config
    for part in (text, getattr(config, "decoder", None)):
        size = getattr(part, "vocab_size", None)
        if isinstance(size, int):
            return size
    raise CannotBuild(
        f"{type(config).__name__} says no vocab_size, so no tokens can be drawn",
        hint="write a small Python file with the model and its inputs, and use the suite file",
    )


def _decoder_length(config: Any, length: int) -> int:
    most = getattr(config, "max_target_positions", None)
    return min(length, most) if isinstance(most, int) else length


def _image_shape(config: Any, batch: int) -> Tuple[int, ...]:
    part = getattr(config, "vision_config", None) or config
    size = getattr(part, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return (batch, getattr(part, "num_channels", 3), height, width)


def _sound_shape(config: Any, length: int, batch: int) -> Tuple[int, ...]:
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return (batch, config.max_length, config.num_mel_bins)
    return (batch, length)


def _spectrum_shape(label: str, config: Any, length: int, batch: int) -> Tuple[int, ...]:
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        return (batch, config.num_mel_bins, 2 * config.max_source_positions)
    if hasattr(config, "input_feat_per_channel"):
        return (batch, length, config.input_feat_per_channel * config.input_channels)
    raise CannotBuild(
        f"{label}: the shape of its input_features is not known here",
        hint="write a small Python file with the model and its inputs, and use the suite file",
    )


def _labels(
    name: str, config: Any, accepted: Set[str], inputs: Dict[str, Any], batch: int
) -> Dict[str, Any]:
    """What the task in the class's name is trained with; empty: the model computes no loss."""
    main = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    length = main.shape[-1] if main is not None else 1
    found: Dict[str, Any] = {}
    if "QuestionAnswering" in name:
        for key in ("start_positions", "end_positions"):
            found[key] = torch.randint(length, (batch,))
    elif "return_loss" in accepted:
        found["return_loss"] = True
    elif "ForMultipleChoice" in name:
        found["labels"] = torch.randint(CHOICES, (batch,))
    elif "NextSentencePrediction" in name:
        found["labels"] = torch.randint(2, (batch,))
    elif "ForTokenClassification" in name:
        found["labels"] = torch.randint(config.num_labels, (batch, length))
    elif name.endswith(("SequenceClassification", "ImageClassification", "AudioClassification")):
        found["labels"] = torch.randint(config.num_labels, (batch,))
    elif "ForCTC" in name:
        found["labels"] = _tokens(config, (batch, 4))
    elif main is not None and name.endswith(
        ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "WithLMHead", "ForConditionalGeneration")
    ):
        found["labels"] = _tokens(config, tuple(main.shape))
    elif main is not None and "ForPreTraining" in name:
        high = 2 if name.startswith("Electra") else _vocabulary(config)
        found["labels"] = torch.randint(high, tuple(main.shape))
        for key in ("next_sentence_label", "sentence_order_label"):
            if key in accepted:
                found[key] = torch.randint(2, (batch,))
    return found if all(key in accepted for key in found) else {}


# Names of classes that are no models of their own: other frameworks, bases and chooser classes.
_NOT_MODELS = ("TF", "Flax", "Auto", "DataCollator")
_MODEL_MARKS = ("LMHead", "Model")
# From this size on, weights are drawn on the device: drawing 7 billion on a CPU takes minutes.
DRAWN_ON_DEVICE = 1_000_000_000


class Wanted(NamedTuple):
    """What a name and a file come to. `length` None: the family's."""

    model_class: Any
    sizes: Dict[str, Any]
    length: Optional[int]


def names() -> List[str]:
    """The list, then all other model classes of the installed transformers."""
    package = _transformers()
    classes = sorted(name for name in dir(package) if _looks_like_a_model(name))
    return list(BY_NAME) + [name for name in classes if name not in BY_NAME]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make one model with inputs for its task; the loss is the model's own, where it has one."""
    label = "huggingface/" + name
    wishes = dict(parameters)
    listed = BY_NAME.get(name)
    wanted = _wanted(label, name, listed, wishes.pop(huggingface_file.CONFIG, None))
    config, length = make_config(label, wanted.model_class, wanted.sizes, wishes, wanted.length)
    rows = batch_size or batch_size_for(listed.listed if listed else None, device, 1)
    module = _make(label, wanted.model_class, config, device)
    training = mode == "training"
    inputs, labelled = make_inputs(label, module, length, rows, training)
    if training and not labelled:
        raise CannotBuild(
            f"{label} computes no loss of its own that is known here",
            hint="use the mode inference, or a class with a task, such as BertForMaskedLM",
        )
    return Built(
        module.to(device),
        kwargs=map_tensors(inputs, lambda tensor: tensor.to(device)),
        loss=_own_loss if labelled else None,
        loss_said="the model's own" if labelled else "",
        optimizer=losses.sgd(1e-4),
        batch_size=rows,
    )


def _wanted(label: str, name: str, listed: Optional[HuggingFaceModel], path: Any) -> Wanted:
    class_name = listed.model_class if listed else name
    since = listed.since if listed else ""
    if path is None:
        if name == huggingface_file.AUTO:
            raise CannotBuild(
                f"{label} is what a configuration file says, and none is given",
                hint=f"write huggingface/{name}:{huggingface_file.CONFIG}=FILE.json",
            )
        model_class = _model_class(class_name, label, since)
        return Wanted(
            model_class, listed.sizes if listed else {}, listed.length if listed else None
        )
    values = huggingface_file.read_config_file(label, path)
    huggingface_file.check_known(label, _transformers(), values)
    if name == huggingface_file.AUTO:
        class_name = huggingface_file.architecture_in(label, values, path)
    model_class = _model_class(class_name, label, since)
    huggingface_file.check_kind(label, model_class, values, path)
    return Wanted(model_class, huggingface_file.sizes_in(values), listed.length if listed else None)


def _make(label: str, model_class: Any, config: Any, device: Any) -> Any:
    """The model with random weights; only a very large one is drawn on a GPU itself."""
    try:
        if torch.device(device).type == "cpu" or _weights(model_class, config) < DRAWN_ON_DEVICE:
            return model_class(config)
        with torch.device(device):
            return model_class(config)
    except ImportError as error:
        raise CannotBuild(
            f"{label} needs a package that the target does not have: {error}",
            hint="install it into the target",
        ) from error
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if "memory" in str(error):  # what the CPU's allocator says is a plain RuntimeError
            raise
        raise CannotBuild(
            f"{label} refuses this configuration: {type(error).__name__}: {error}",
            hint="change the parameters, or leave them out",
        ) from error


def _weights(model_class: Any, config: Any) -> int:
    """How many there are, from a model without any numbers in it; 0 where that cannot be made."""
    try:
        with torch.device("meta"):
            return sum(each.numel() for each in model_class(config).parameters())
    except Exception:  # some read numbers while they are made, and there are none
        return 0


def _own_loss(output: Any) -> Any:
    """What the model computed from the labels: the first output."""
    loss = getattr(output, "loss", None)
    return output[0] if loss is None else loss


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise CannotBuild(
            f"the target has no transformers package that can be imported: {error}",
            hint="install transformers into the target",
        ) from error
    return transformers


def _model_class(name: str, label: str, since: str) -> Any:
    package = _transformers()
    found = None
    if _looks_like_a_model(name):
        try:
            found = getattr(package, name, None)
        except (ImportError, RuntimeError) as error:
            raise CannotBuild(
                f"transformers cannot load {name}: {error}",
                hint="the target's transformers may be too new or too old for its torch",
            ) from error
    if getattr(found, "config_class", None) is not None:
        return found
    version = getattr(package, "__version__", "of unknown version")
    if since:
        raise CannotBuild(
            f"{label} needs the class {name}, which transformers {version} does not have",
            hint=f"install transformers {since} or newer into the target",
        )
    raise CannotBuild(
        f"transformers {version} has no model class {name!r}{nearest(name, names())}",
        hint="give the name of a model class, such as BertForMaskedLM",
    )


def _looks_like_a_model(name: str) -> bool:
    if name.startswith(_NOT_MODELS) or name.endswith(("PreTrainedModel", "Config", "Output")):
        return False
    if not name[:1].isupper():
        return False
    return any(mark in name for mark in _MODEL_MARKS) or "For" in name[1:]
