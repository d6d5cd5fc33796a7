"""Patches of gradients: released instead of zeroed, and, on request, sparse gradients of embeddings.

A gradient that is None is skipped by an optimizer, and one that is zero is not: the same only if a zero gradient
changes nothing, as with plain SGD. Code that reads gradients, or may read them, prevents both patches. A sparse
gradient adds a row that occurs several times in a batch in several steps, which rounds in another way.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from torchyard.values.model import ValueFinding
from torchyard.values.patching.model import (
    SET_TO_NONE,
    SPARSE_GRADIENT,
    Edit,
    NotProposed,
    Patch,
)
from torchyard.values.patching.source_file import SourceFile, copy_with_index

_READS_GRADIENTS: Final = (
    *("grad", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"),
    *("register_full_backward_hook", "register_backward_hook", "GradScaler", "clip_grad_norm_"),
    *("clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_", "get_total_norm"),
    *("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "functional_call"),
    *("create_graph", "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"),
    *("register_step_pre_hook", "register_step_post_hook", "getattr", "__dict__", "eval", "exec"),
    *("_grad", "CUDAGraph", "make_graphed_callables"),
    *("import_module", "__import__", "getattr_static", "attrgetter", "vars"),
)
_CHANGES_OPTIMIZER: Final = (
    *("param_groups", "add_param_group", "OneCycleLR", "CyclicLR", "load_state_dict", "defaults"),
    *("momentum", "weight_decay", "nesterov", "Optimizer", "SWALR", "swa_utils", "dampening"),
)
_EMBEDDING_PLACES: Final = 3
"""Size of the table, of a row, and the index of the padding."""
_SGD_PLACES: Final = 2
"""Parameters and learning rate."""
_NO_EFFECT_NAMES: Final = ("params", "lr", "foreach", "fused")
_JOINS: Final = frozenset({"list", "tuple", "filter", "itertools.chain"})
_TENSORS: Final = ("torch.nn.Parameter", "torch.randn", "torch.rand", "torch.zeros", "torch.ones")
_NOT_OPTIMIZERS: Final = ("torch.optim.lr_scheduler", "torch.optim.swa_utils")


def release_gradients(
    finding: ValueFinding, source: SourceFile, sources: Sequence[SourceFile]
) -> Patch:
    """Return the patch `zero_grad(set_to_none=True)`."""
    calls = [
        call
        for call in source.calls_at(finding.place.line)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"
    ]
    if len(calls) != 1:
        raise NotProposed("gradients are not zeroed by one call of zero_grad on this line")
    (call,) = calls
    source.check_editable(call)
    value = _set_to_none(call)
    _check_unread(sources)
    _check_plain_sgd(sources)
    edit = Edit(start=source.start(value), end=source.end(value), text=b"True")
    copy, (again,) = copy_with_index(source.tree, [value])
    again.value = True
    source.check_result([edit], copy)
    return Patch(
        kind=SET_TO_NONE,
        file=finding.place.file,
        text="gradients released instead of zeroed",
        edits=(edit,),
    )


def make_sparse(finding: ValueFinding, source: SourceFile, sources: Sequence[SourceFile]) -> Patch:
    """Return the patch that gives an embedding sparse gradients."""
    _check_unread(sources)
    word = _mentioned(sources, "weight", "sparse", "max_norm", "scale_grad_by_freq", "tie_weights")
    if word:
        raise NotProposed(f"the program uses {word}: the table may need a dense gradient")
    constructors = [
        (one, call)
        for one in sources
        for call in ast.walk(one.tree)
        if isinstance(call, ast.Call) and one.meaning(call.func) == "torch.nn.Embedding"
    ]
    if len(constructors) != 1 or constructors[0][0].path != source.path:
        raise NotProposed("the program does not have exactly one torch.nn.Embedding in this file")
    _check_plain_sgd(sources)
    source, call = constructors[0]
    source.check_editable(call)
    if (
        len(call.args) > _EMBEDDING_PLACES
        or any(one.arg is None for one in call.keywords)
        or not call.args
    ):
        raise NotProposed("the arguments of the embedding are not certain")
    if any(isinstance(one, ast.Starred) for one in call.args):
        raise NotProposed("the arguments of the embedding are not certain")
    last = max((source.end(one) for one in (*call.args, *call.keywords)), default=0)
    edit = Edit(start=last, end=last, text=b", sparse=True")
    copy, (again,) = copy_with_index(source.tree, [call])
    again.keywords.append(ast.keyword(arg="sparse", value=ast.Constant(value=True)))
    source.check_result([edit], copy)
    return Patch(
        kind=SPARSE_GRADIENT,
        file=finding.place.file,
        text="a sparse gradient that has only the rows in use",
        edits=(edit,),
        rounds=True,
    )


def _set_to_none(call: ast.Call) -> ast.Constant:
    values = [*call.args, *(one.value for one in call.keywords if one.arg == "set_to_none")]
    if len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value is False:
        return values[0]
    raise NotProposed("whether zero_grad writes zeros does not follow from a literal on this line")


def _check_unread(sources: Sequence[SourceFile]) -> None:
    word = _mentioned(sources, *_READS_GRADIENTS)
    if word:
        raise NotProposed(f"the program uses {word}: it may read or change gradients")
    if any(source.has_star_import for source in sources):
        raise NotProposed("the program has a star import: the meaning of its names is not certain")


def _check_plain_sgd(sources: Sequence[SourceFile]) -> None:
    """Raise NotProposed unless the only optimizer is SGD without momentum and weight decay."""
    made = [
        (source, node)
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and source.meaning(node.func).startswith("torch.optim.")
        and not source.meaning(node.func).startswith("torch.optim.lr_scheduler")
    ]
    if len(made) != 1:
        raise NotProposed("the program does not construct exactly one optimizer of torch.optim")
    source, call = made[0]
    _check_no_other_optimizer(sources, call)
    name = source.meaning(call.func).rpartition(".")[2]
    if name != "SGD":
        raise NotProposed(
            f"{name} changes parameters also where their gradient is zero, and skips those without a gradient"
        )
    if len(call.args) > _SGD_PLACES or any(isinstance(one, ast.Starred) for one in call.args):
        raise NotProposed("the settings of the optimizer are not certain")
    for keyword in call.keywords:
        if keyword.arg is None:
            raise NotProposed("the settings of the optimizer are not certain")
        if keyword.arg not in _NO_EFFECT_NAMES:
            raise NotProposed(
                f"SGD with {keyword.arg} changes parameters also where their gradient is zero"
            )
    given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "params")]
    own = any(
        isinstance(node, (ast.FunctionDef, ast.Attribute))
        or isinstance(one.scope(node), ast.ClassDef)
        for one in sources
        for node in one.bindings.get("parameters", ())
    )
    if own or len(given) != 1 or not _are_parameters(source, given[0]):
        raise NotProposed("the parameters of the optimizer may have settings of their own")
    word = _mentioned(sources, *_CHANGES_OPTIMIZER)
    if word:
        raise NotProposed(f"the program uses {word}: the optimizer may be changed later")


def _check_no_other_optimizer(sources: Sequence[SourceFile], made: ast.Call) -> None:
    """Raise NotProposed if an optimizer is also named elsewhere, as in a table or `partial(torch.optim.Adam)`."""
    for source in sources:
        for node in ast.walk(source.tree):
            named = isinstance(node, (ast.Name, ast.Attribute)) and node is not made.func
            meaning = source.meaning(node) if named else ""
            of_optim = meaning == "torch.optim" or meaning.startswith("torch.optim.")
            if not of_optim or meaning.startswith(_NOT_OPTIMIZERS):
                continue
            if meaning == "torch.optim" and isinstance(source.parents[node], ast.Attribute):
                continue
            raise NotProposed(f"the program also uses {meaning}: there may be other optimizers")


def _are_parameters(source: SourceFile, node: ast.expr, *, inside: bool = False) -> bool:
    """Return whether an expression gives parameters only, and no groups with settings of their own."""
    if isinstance(node, ast.Starred):
        return _are_parameters(source, node.value)
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(_are_parameters(source, one, inside=True) for one in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _are_parameters(source, node.left) and _are_parameters(source, node.right)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        first = node.generators[0]
        return len(node.generators) == 1 and (
            isinstance(node.elt, ast.Name)
            and isinstance(first.target, ast.Name)
            and node.elt.id == first.target.id
            and _are_parameters(source, first.iter)
        )
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "parameters":
            return not inside
        if source.meaning(node.func) == "filter":
            return len(node.args) > 1 and _are_parameters(source, node.args[1])
        joined = source.meaning(node.func) in _JOINS and not node.keywords
        return joined and all(_are_parameters(source, one) for one in node.args)
    if isinstance(node, ast.Name):
        bindings = source.bindings.get(node.id, [])
        statement = source.parents.get(bindings[0]) if len(bindings) == 1 else None
        made = statement.value if isinstance(statement, ast.Assign) else None
        if made is None or statement.targets != bindings:  # type: ignore[union-attr]
            return False
        if inside:
            return source.meaning(getattr(made, "func", made)) in _TENSORS
        return _are_parameters(source, made)
    return False


def _mentioned(sources: Sequence[SourceFile], *words: str) -> str:
    return next((word for source in sources if (word := source.mentions(*words))), "")
