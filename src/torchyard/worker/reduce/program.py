"""Programs cut out of a captured graph: any subset of its operators, with recorded inputs.

The graph is what dynamo passes to a compiler. Every value is recorded in one eager run, so a subset
runs on the real intermediate tensors: shapes, data types and strides are kept.
"""

import operator
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.why.kernels import unit_of_node
from torchyard.worker.why.sources import operator_name
from torchyard.worker.workload import CannotBuild

_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.Size, slice)


class Value(NamedTuple):
    """A tensor that a program takes: one that its operators do not compute."""

    name: str
    tensor: Any


class Program(NamedTuple):
    """A module that needs no attributes, with its inputs and the names of its operators."""

    module: Any
    values: List[Value]
    operators: List[str]

    @property
    def inputs(self) -> Tuple[Any, ...]:
        """The tensors to call it with."""
        return tuple(value.tensor for value in self.values)


class _DispatchedOperators(TorchDispatchMode):
    """The names of the operators that PyTorch dispatches to."""

    def __init__(self) -> None:
        super().__init__()
        self.names: List[str] = []

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(operator_name(function))
        return function(*args, **(kwargs or {}))


class Recording(torch.fx.Interpreter):
    """One eager run of a graph that keeps the values of all nodes, and what each dispatches to."""

    def __init__(self, graph_module: Any) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        self.values: Dict[Any, Any] = {}
        self.dispatched: Dict[Any, List[str]] = {}

    def run_node(self, n: Any) -> Any:
        """Run a node; in-place operators may change its value later, so tensors are copied."""
        # Higher-order operators have no rule for a dispatch mode.
        if isinstance(n.target, torch._ops.HigherOrderOperator) or n.op == "output":
            value = super().run_node(n)
        else:
            with _DispatchedOperators() as operators:
                value = super().run_node(n)
            self.dispatched[n] = operators.names
        self.values[n] = _copied(value)
        return value


class Captured:
    """The graphs of a model, their operators as units that are kept or left out, and all values."""

    def __init__(self, module: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        self.values: Dict[Any, Any] = {}
        self.units: List[List[Any]] = []
        """A node, with the nodes that take items of its result."""
        self.graphs = 0
        self._dispatched: Dict[Any, List[str]] = {}
        self._order: Dict[Any, int] = {}
        torch._dynamo.reset()
        torch.compile(module, backend=self._compiler)(*args, **kwargs)
        torch._dynamo.reset()
        if not self.units:
            raise CannotBuild("the model has no operator that a compiler sees")

    def _compiler(self, graph_module: Any, _: Any) -> Callable[..., Any]:
        for node in graph_module.graph.nodes:
            if node.op == "call_module":
                raise CannotBuild(
                    "torch " + torch.__version__ + " keeps modules in captured graphs",
                    hint="use torch 2.5 or newer",
                )
        self.graphs += 1
        self._add_units(graph_module.graph)

        def run(*args: Any) -> Any:
            recording = Recording(graph_module)
            result = recording.run(*args)
            self.values.update(recording.values)
            self._dispatched.update(recording.dispatched)
            return result

        return run

    def _add_units(self, graph: Any) -> None:
        unit_of: Dict[Any, List[Any]] = {}
        for node in graph.nodes:
            if node.op not in ("call_function", "call_method"):
                continue
            self._order[node] = len(self._order)
            several = node.args and node.args[0] in unit_of and _is_several(node.args[0])
            if node.target is operator.getitem and several:
                unit = unit_of[node.args[0]]
                unit.append(node)
            else:
                unit = [node]
                self.units.append(unit)
            unit_of[node] = unit

    def names(self) -> List[str]:
        """Return the operator of each unit."""
        return [_operator_name(unit[0]) for unit in self.units]

    def places(self) -> List[List[Any]]:
        """Return module, file, line, its text, and the dispatched operators of each unit."""
        places: List[List[Any]] = []
        for unit in self.units:
            source = unit_of_node(unit[0], "")
            operators = [name for node in unit for name in self._dispatched.get(node, ())]
            places.append([source.module, source.file, source.line, source.text, operators])
        return places

    def program(self, units: Sequence[int], sizes: Dict[int, int]) -> Program:
        """Return the program of some units; `sizes` replaces lengths of dimensions by shorter ones."""
        nodes = [node for index in units for node in self.units[index]]
        nodes.sort(key=self._order.__getitem__)
        chosen = set(nodes)
        graph = torch.fx.Graph()
        copies: Dict[Any, Any] = {}
        values: List[Value] = []

        def external(node: Any) -> Any:
            value = self.values.get(node)
            if isinstance(value, torch.Tensor):
                tensor = shortened(value, sizes)
                copies[node] = graph.placeholder("x%d" % len(values))
                values.append(Value(node.name, tensor))
                return copies[node]
            if _is_plain(value):
                return _replaced(value, sizes)
            raise CannotBuild("the value of " + node.name + " cannot be an input")

        # Inputs come first in a graph.
        constants: Dict[Any, Any] = {}
        for node in nodes:
            for source in node.all_input_nodes:
                if source not in chosen and source not in copies and source not in constants:
                    constant = external(source)
                    if source not in copies:
                        constants[source] = constant
        for node in nodes:
            args, kwargs = torch.fx.node.map_arg(
                (node.args, node.kwargs),
                lambda one: copies[one] if one in copies else constants[one],
            )
            args, kwargs = _replaced(args, sizes), _replaced(kwargs, sizes)
            copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        outputs = [
            copies[node]
            for node in nodes
            if isinstance(self.values.get(node), torch.Tensor)
            and any(user not in chosen for user in node.users)
        ]
        outputs = outputs or [copies[nodes[-1]]]
        graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        graph.lint()
        module = torch.fx.GraphModule({}, graph)
        return Program(module, values, [_operator_name(self.units[i][0]) for i in sorted(units)])

    def lengths(self, units: Sequence[int]) -> List[int]:
        """Return the different lengths of dimensions of the inputs, longest first."""
        program = self.program(units, {})
        return sorted({n for value in program.values for n in value.tensor.shape}, reverse=True)


def shortened(tensor: Any, sizes: Dict[int, int]) -> Any:
    """Return the first elements of a tensor along dimensions to shorten, in the same stride order."""
    if not any(length in sizes for length in tensor.shape):
        return tensor
    gradient, tensor = tensor.requires_grad, tensor.detach()
    part = tensor[tuple(slice(0, sizes.get(length, length)) for length in tensor.shape)]
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d]))
    strides = [0] * tensor.dim()
    step = 1
    for dimension in order:
        if tensor.stride(dimension) == 0:
            continue
        strides[dimension] = step
        step *= part.shape[dimension]
    flat = torch.empty(step, dtype=tensor.dtype, device=tensor.device)
    result = flat.as_strided(part.shape, strides)
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    result[index].copy_(part[index])
    return result.requires_grad_(gradient)


def _replaced(value: Any, sizes: Dict[int, int]) -> Any:
    """Return arguments of an operator with other lengths in place of those that are shortened."""
    if isinstance(value, bool) or not sizes:
        return value
    if isinstance(value, int):
        return sizes.get(value, value)
    if isinstance(value, torch.Size):
        return torch.Size([sizes.get(one, one) for one in value])
    if isinstance(value, (tuple, list)):
        items = [_replaced(one, sizes) for one in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: _replaced(one, sizes) for key, one in value.items()}
    return value


def _copied(value: Any) -> Any:
    """Copy a tensor with its strides, as a leaf of autograd; other values stay."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    gradient, value = value.requires_grad and torch.is_grad_enabled(), value.detach()
    if any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape)):
        return value.requires_grad_(gradient)
    copy = torch.empty_strided(
        tuple(value.shape), value.stride(), dtype=value.dtype, device=value.device
    )
    return copy.copy_(value).requires_grad_(gradient)


def _is_several(node: Any) -> bool:
    """Whether an operator returns several values."""
    return isinstance(node.meta.get("example_value"), (tuple, list))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return all(_is_plain(one) for one in value)
    return isinstance(value, _PLAIN)


def _operator_name(node: Any) -> str:
    if node.op == "call_method":
        return "Tensor." + str(node.target)
    name = getattr(node.target, "__name__", str(node.target))
    module = getattr(node.target, "__module__", "") or ""
    return str(name) if module in ("", "builtins") else module + "." + str(name)
