"""Configuration files of the suite huggingface: valid files, and errors with a reason."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from torchyard.worker import suites
from torchyard.worker.workload import BuiltWorkload, CannotBuild

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),  # what transformers warns about is not ours
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="transformers is not installed beside the tests",
    ),
]

BERT: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "transformers_version": "4.6.0",
    "torch_dtype": "float16",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 200,
    "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.1,
}


def written(folder: Path, **values: Any) -> str:
    path = folder / "config.json"
    kept = {key: value for key, value in {**BERT, **values}.items() if value is not None}
    path.write_text(json.dumps(kept))
    return str(path)


def made(name: str, path: object, mode: str = "inference", /, **more: Any) -> BuiltWorkload:
    return suites.build("huggingface", name, mode, 2, {"config": path, **more})


def refusal(name: str, path: object) -> tuple[str, str]:
    with pytest.raises(CannotBuild) as caught:
        made(name, path)
    return str(caught.value), caught.value.hint


def test_the_file_chooses_the_class_and_the_sizes(tmp_path: Path) -> None:
    built = made("auto", written(tmp_path), "training")
    assert type(built.module).__name__ == "BertForMaskedLM"
    assert len(built.module.bert.encoder.layer) == 3
    assert tuple(built.kwargs["input_ids"].shape) == (2, 24)
    assert built.loss is not None
    assert bool(built.loss(built.module(**built.kwargs)).isfinite())
    # Weights are float32 and nothing is left to chance, whatever the file says.
    assert {str(p.dtype) for p in built.module.parameters()} == {"torch.float32"}
    assert built.module.config.hidden_dropout_prob == 0.0


def test_class_of_the_same_model_type_with_parameters(tmp_path: Path) -> None:
    built = made("BertForQuestionAnswering", written(tmp_path), num_hidden_layers=1, length=9)
    assert type(built.module).__name__ == "BertForQuestionAnswering"
    assert len(built.module.bert.encoder.layer) == 1
    assert tuple(built.kwargs["input_ids"].shape) == (2, 9)


def test_a_file_in_the_place_of_a_listed_model(tmp_path: Path) -> None:
    values = {"num_key_value_heads": 1, "model_type": "llama", "tie_word_embeddings": True}
    path = written(tmp_path, architectures=["LlamaForCausalLM"], **values)
    built = made("Llama-3.2-1B", path)
    assert built.module.config.hidden_size == 32
    assert built.module.config.num_hidden_layers == 3


def test_parts_of_a_configuration(tmp_path: Path) -> None:
    part = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    part["num_hidden_layers"] = 1
    path = tmp_path / "clip.json"
    text, vision = {**part, "vocab_size": 99}, {**part, "image_size": 32, "patch_size": 16}
    clip = {"model_type": "clip", "architectures": ["CLIPModel"]}
    path.write_text(json.dumps({**clip, "text_config": text, "vision_config": vision}))
    built = made("auto", str(path), "inference", **{"text_config.num_hidden_layers": 2})
    assert built.module.config.text_config.num_hidden_layers == 2
    assert built.module.config.vision_config.num_hidden_layers == 1
    assert int(built.kwargs["input_ids"].max()) < 99


def test_refusals(tmp_path: Path) -> None:
    message, hint = refusal("auto", str(tmp_path / "none.json"))
    assert "none.json cannot be read" in message
    assert "config.json" in hint
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json cannot be read" in refusal("auto", str(tmp_path / "bad.json"))[0]
    (tmp_path / "list.json").write_text("[]")
    assert "has no model_type" in refusal("auto", str(tmp_path / "list.json"))[0]
    assert "invalid parameter config of huggingface/auto: 5" in refusal("auto", 5)[0]

    message, hint = refusal("auto", written(tmp_path, architectures=None))
    assert "has no architectures" in message
    assert "BertForMaskedLM:config=" in hint
    message, hint = refusal("GPT2LMHeadModel", written(tmp_path))
    assert "has model type 'gpt2'" in message
    assert "has 'bert'" in message
    assert "huggingface/auto:config=" in hint
    message, _ = refusal("auto", written(tmp_path, model_type="berd"))
    assert "does not have the model type 'berd'; did you mean bert" in message
    message, _ = refusal("auto", written(tmp_path, model_type="mine", auto_map={"AutoModel": "x"}))
    assert "code that comes with a model is not run" in message
    message, _ = refusal("auto", written(tmp_path, architectures=["BertForNothing"]))
    assert "has no model class 'BertForNothing'" in message
    assert "does not accept" in refusal("auto", written(tmp_path, num_attention_heads=5))[0]


def test_without_a_file() -> None:
    with pytest.raises(CannotBuild) as caught:
        suites.build("huggingface", "auto")
    assert "requires a configuration file" in str(caught.value)
    assert caught.value.hint == "write huggingface/auto:config=FILE.json"
