"""The suite `torchvision`: its models of classification, detection and segmentation.

Not called `torchvision`, so that nobody takes it for the package. Weights are random: none are
fetched for the model, nor for its backbone, which torchvision would fetch by default. Knows how a
model is made; inputs and losses are in `torchvision_tasks`.
"""

from typing import Any, Callable, Dict, List, Optional

from torchyard.worker.built import Built, CannotBuild
from torchyard.worker.suites import losses, torchvision_tasks
from torchyard.worker.suites.batch_sizes import batch_size_for
from torchyard.worker.suites.choices import is_whole, nearest
from torchyard.worker.suites.without_chance import take_chance_out
from torchyard.worker.torchvision_catalog import TORCHVISION_BY_NAME

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
    if training and rows < 2 and name.startswith(torchvision_tasks.NEED_TWO_IMAGES):
        raise CannotBuild(
            f"{label} cannot be trained with a batch of one image: it normalises single pixels",
            hint="give a batch size from 2 up",
        )
    settings, images = torchvision_tasks.settings_and_size(name, task, size)
    module = _make(label, _builder(package, task, name), task, dict(settings, **wishes))
    if not any("drop" in key or key == "stochastic_depth_prob" for key in wishes):
        take_chance_out(module)
    if task == DETECTION:
        made = torchvision_tasks.detection(name, wishes, rows, images, training, device)
    elif task == SEGMENTATION:
        made = torchvision_tasks.segmentation(wishes, rows, images, device)
    else:
        made = torchvision_tasks.classification(wishes, rows, images, device)
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
