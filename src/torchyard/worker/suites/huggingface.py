"""The suite `huggingface`: any model class of the target's transformers, with random weights.

The model comes from its configuration class alone, so nothing is fetched. Dropout is off before
the model is built. Knows which class and which loss; configurations and inputs have their own
modules.
"""

from typing import Any, Dict, List, Optional

from torchyard.worker.built import Built, CannotBuild, map_tensors
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import nearest
from torchyard.worker.suites.huggingface_config import make_config
from torchyard.worker.suites.huggingface_inputs import make_inputs

# Names of classes that are no models of their own: other frameworks, bases and chooser classes.
_NOT_MODELS = ("TF", "Flax", "Auto", "DataCollator")
_MODEL_MARKS = ("LMHead", "Model")


def names() -> List[str]:
    """The model classes of the installed transformers."""
    package = _transformers()
    return sorted(name for name in dir(package) if _looks_like_a_model(name))


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make one model with inputs for its task; the loss is the model's own, where it has one."""
    label = "huggingface/" + name
    model_class = _model_class(name)
    config, length = make_config(label, model_class, parameters)
    try:
        module = model_class(config)
    except ImportError as error:
        raise CannotBuild(
            f"{label} needs a package that the target does not have: {error}",
            hint="install it into the target",
        ) from error
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        raise CannotBuild(
            f"{label} refuses this configuration: {type(error).__name__}: {error}",
            hint="change the parameters, or leave them out",
        ) from error
    training = mode == "training"
    inputs, labelled = make_inputs(label, module, length, batch_size or 1, training)
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
    )


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


def _model_class(name: str) -> Any:
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
    if getattr(found, "config_class", None) is None:
        version = getattr(package, "__version__", "of unknown version")
        raise CannotBuild(
            f"transformers {version} has no model class {name!r}{nearest(name, names())}",
            hint="give the name of a model class, such as BertForMaskedLM",
        )
    return found


def _looks_like_a_model(name: str) -> bool:
    if name.startswith(_NOT_MODELS) or name.endswith(("PreTrainedModel", "Config", "Output")):
        return False
    if not name[:1].isupper():
        return False
    return any(mark in name for mark in _MODEL_MARKS) or "For" in name[1:]
