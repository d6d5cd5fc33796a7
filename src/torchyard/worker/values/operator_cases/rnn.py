"""Recurrent networks."""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw


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


CASES: List[Case] = [
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
