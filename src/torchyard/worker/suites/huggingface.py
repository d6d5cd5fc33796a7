"""The suite `huggingface`: models of the target's transformers, with random weights.

A name is one of the list, which stands for a class and its sizes, or that of any model class, or
`auto` with a configuration file. The model comes from its configuration alone, so nothing is
fetched. Dropout is off before the model is built. Knows which class and which loss; configurations,
files and inputs have their own modules.
"""

from typing import Any, Dict, List, NamedTuple, Optional

import torch

from torchyard.worker.built import Built, CannotBuild, map_tensors
from torchyard.worker.huggingface_catalog import BY_NAME, HuggingFaceModel
from torchyard.worker.suites import huggingface_file, losses
from torchyard.worker.suites.batch_sizes import batch_size_for
from torchyard.worker.suites.choices import nearest
from torchyard.worker.suites.huggingface_config import make_config
from torchyard.worker.suites.huggingface_inputs import make_inputs

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
