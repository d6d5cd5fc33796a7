"""The models that the suite `huggingface` runs when it is run whole, as data: no torch.

The names, lengths and GPU batch sizes are those of the benchmark harness of PyTorch itself, so that
numbers can be held side by side; its batch sizes are for 40 GB, after its own divisions. Where a
name is that of a model class, the harness runs what transformers makes by default, which is not
always a model that was published (Pegasus, MBart and BlenderbotSmall are smaller). Batch sizes for
CPUs are the harness's too, less for models over half a billion parameters.
"""

from typing import Any, Dict, List, NamedTuple, Tuple

from torchyard.worker import huggingface_sizes as sizes
from torchyard.worker.catalog_entry import BOTH, Listed

INFERENCE = ("inference",)


class HuggingFaceModel(NamedTuple):
    """A name, and what it stands for: a model class, its sizes, and the length of its inputs.

    since   the first transformers that has the class, where that is not long ago
    """

    name: str
    about: str
    model_class: str
    sizes: Dict[str, Any]
    length: int
    gpu_batch_size: int
    cpu_batch_size: int
    modes: Tuple[str, ...] = BOTH
    since: str = ""

    @property
    def listed(self) -> Listed:
        """What the catalogue tells of it."""
        return Listed(self.name, self.modes, self.about, self.gpu_batch_size, self.cpu_batch_size)


def _of_class(
    name: str,
    about: str,
    values: Dict[str, Any],
    length: int,
    gpu: int,
    cpu: int,
    modes: Tuple[str, ...] = BOTH,
) -> HuggingFaceModel:
    """One whose name is that of its class."""
    return HuggingFaceModel(name, about, name, values, length, gpu, cpu, modes)


MODELS: List[HuggingFaceModel] = [
    _of_class("AlbertForMaskedLM", "ALBERT xxlarge", sizes.ALBERT_XXLARGE, 512, 4, 4),
    _of_class("AlbertForQuestionAnswering", "ALBERT xxlarge", sizes.ALBERT_XXLARGE, 512, 4, 4),
    HuggingFaceModel(
        "AllenaiLongformerBase",
        "Longformer base, masked tokens",
        "LongformerForMaskedLM",
        sizes.LONGFORMER_BASE,
        1024,
        4,
        4,
    ),
    _of_class("BartForCausalLM", "decoder of BART large", sizes.BART_LARGE, 1024, 4, 4),
    _of_class("BartForConditionalGeneration", "BART large", sizes.BART_LARGE, 1024, 2, 2),
    _of_class("BertForMaskedLM", "BERT base", sizes.BERT_BASE, 512, 16, 16),
    _of_class("BertForQuestionAnswering", "BERT base", sizes.BERT_BASE, 512, 16, 16),
    _of_class("BlenderbotForCausalLM", "decoder of Blenderbot 3B", sizes.BLENDERBOT_3B, 128, 4, 4),
    _of_class(
        "BlenderbotForConditionalGeneration", "Blenderbot 3B", sizes.BLENDERBOT_3B, 128, 16, 4
    ),
    _of_class(
        "BlenderbotSmallForCausalLM",
        "decoder of a small Blenderbot",
        sizes.BLENDERBOT_SMALL,
        128,
        64,
        32,
    ),
    _of_class(
        "BlenderbotSmallForConditionalGeneration",
        "a small Blenderbot",
        sizes.BLENDERBOT_SMALL,
        128,
        64,
        32,
    ),
    HuggingFaceModel(
        "CamemBert",
        "CamemBERT base, masked tokens",
        "CamembertForMaskedLM",
        sizes.CAMEMBERT_BASE,
        512,
        16,
        16,
    ),
    _of_class(
        "DebertaV2ForMaskedLM",
        "DeBERTa-v2 xlarge without relative positions",
        sizes.DEBERTA_V2_XLARGE,
        512,
        2,
        2,
    ),
    _of_class(
        "DebertaV2ForQuestionAnswering",
        "DeBERTa-v2 xlarge without relative positions",
        sizes.DEBERTA_V2_XLARGE,
        512,
        4,
        2,
    ),
    _of_class("DistilBertForMaskedLM", "DistilBERT base", sizes.DISTILBERT_BASE, 128, 128, 128),
    _of_class(
        "DistilBertForQuestionAnswering", "DistilBERT base", sizes.DISTILBERT_BASE, 128, 256, 128
    ),
    HuggingFaceModel("DistillGPT2", "DistilGPT2", "GPT2LMHeadModel", sizes.DISTILGPT2, 512, 16, 16),
    _of_class("ElectraForCausalLM", "ELECTRA small", sizes.ELECTRA_SMALL, 512, 32, 8),
    _of_class("ElectraForQuestionAnswering", "ELECTRA small", sizes.ELECTRA_SMALL, 512, 64, 8),
    _of_class("GPT2ForSequenceClassification", "GPT-2 small", sizes.GPT2_SMALL, 1024, 4, 4),
    _of_class("GPTJForCausalLM", "GPT-J 6B", sizes.GPTJ_6B, 128, 1, 1, INFERENCE),
    _of_class("GPTJForQuestionAnswering", "GPT-J 6B", sizes.GPTJ_6B, 128, 1, 1, INFERENCE),
    _of_class("GPTNeoForCausalLM", "GPT-Neo 1.3B", sizes.GPT_NEO_1_3B, 128, 32, 2),
    _of_class("GPTNeoForSequenceClassification", "GPT-Neo 1.3B", sizes.GPT_NEO_1_3B, 128, 32, 2),
    HuggingFaceModel(
        "GoogleFnet", "FNet base, masked tokens", "FNetForMaskedLM", sizes.FNET_BASE, 512, 16, 16
    ),
    _of_class("LayoutLMForMaskedLM", "LayoutLM base", sizes.LAYOUTLM_BASE, 512, 16, 16),
    _of_class(
        "LayoutLMForSequenceClassification", "LayoutLM base", sizes.LAYOUTLM_BASE, 512, 16, 16
    ),
    _of_class("M2M100ForConditionalGeneration", "M2M100 418M", sizes.M2M100_418M, 128, 16, 16),
    _of_class("MBartForCausalLM", "decoder of an mBART large", sizes.MBART, 1024, 4, 4),
    _of_class("MBartForConditionalGeneration", "an mBART large", sizes.MBART, 1024, 2, 2),
    _of_class("MT5ForConditionalGeneration", "mT5 small", sizes.MT5_SMALL, 128, 16, 16),
    _of_class("MegatronBertForCausalLM", "Megatron-BERT 345M", sizes.MEGATRON_BERT_345M, 512, 4, 4),
    _of_class(
        "MegatronBertForQuestionAnswering",
        "Megatron-BERT 345M",
        sizes.MEGATRON_BERT_345M,
        512,
        8,
        4,
    ),
    _of_class("MobileBertForMaskedLM", "MobileBERT", sizes.MOBILEBERT, 128, 128, 64),
    _of_class("MobileBertForQuestionAnswering", "MobileBERT", sizes.MOBILEBERT, 128, 128, 64),
    _of_class("OPTForCausalLM", "OPT 125M", sizes.OPT_125M, 2048, 2, 2),
    _of_class("PLBartForCausalLM", "decoder of PLBART base", sizes.PLBART_BASE, 1024, 8, 8),
    _of_class("PLBartForConditionalGeneration", "PLBART base", sizes.PLBART_BASE, 1024, 4, 4),
    _of_class("PegasusForCausalLM", "decoder of a Pegasus", sizes.PEGASUS, 128, 32, 32),
    _of_class("PegasusForConditionalGeneration", "a Pegasus", sizes.PEGASUS, 128, 32, 16),
    _of_class("RobertaForCausalLM", "RoBERTa base", sizes.ROBERTA_BASE, 512, 16, 16),
    _of_class("RobertaForQuestionAnswering", "RoBERTa base", sizes.ROBERTA_BASE, 512, 16, 16),
    _of_class("T5ForConditionalGeneration", "T5 small", sizes.T5_SMALL, 1024, 4, 4),
    HuggingFaceModel(
        "T5Small", "T5 small", "T5ForConditionalGeneration", sizes.T5_SMALL, 1024, 4, 1
    ),
    _of_class("TrOCRForCausalLM", "decoder of TrOCR base", sizes.TROCR_BASE, 256, 32, 32),
    _of_class("XGLMForCausalLM", "XGLM 564M", sizes.XGLM_564M, 128, 8, 8),
    _of_class("XLNetLMHeadModel", "XLNet large", sizes.XLNET_LARGE, 512, 8, 8),
    HuggingFaceModel(
        "YituTechConvBert",
        "ConvBERT base, masked tokens",
        "ConvBertForMaskedLM",
        sizes.CONVBERT_BASE,
        512,
        16,
        16,
    ),
    # The harness lets these generate text; here they read a prompt as long as the harness's.
    HuggingFaceModel(
        "Llama-3.2-1B", "Llama 3.2 1B", "LlamaForCausalLM", sizes.LLAMA_3_2_1B, 1000, 1, 1
    ),
    HuggingFaceModel(
        "gemma-2-2b",
        "Gemma 2 2B",
        "Gemma2ForCausalLM",
        sizes.GEMMA_2_2B,
        1000,
        1,
        1,
        since="4.42",
    ),
    HuggingFaceModel(
        "gemma-3-4b-it",
        "Gemma 3 4B with its image encoder, given text",
        "Gemma3ForConditionalGeneration",
        sizes.GEMMA_3_4B,
        1000,
        1,
        1,
        INFERENCE,
        since="4.50",
    ),
    HuggingFaceModel(
        "whisper-tiny",
        "Whisper tiny, 30 s of sound",
        "WhisperForConditionalGeneration",
        sizes.WHISPER_TINY,
        128,
        1,
        1,
    ),
    HuggingFaceModel(
        "Qwen3-0.6B",
        "Qwen3 0.6B",
        "Qwen3ForCausalLM",
        sizes.QWEN3_0_6B,
        1000,
        1,
        1,
        since="4.51",
    ),
    HuggingFaceModel(
        "Mistral-7B-Instruct-v0.3",
        "Mistral 7B",
        "MistralForCausalLM",
        sizes.MISTRAL_7B,
        1000,
        1,
        1,
        INFERENCE,
    ),
    HuggingFaceModel(
        "gpt-oss-20b",
        "gpt-oss 20B, four of 32 experts at a time",
        "GptOssForCausalLM",
        sizes.GPT_OSS_20B,
        1000,
        1,
        1,
        INFERENCE,
        since="4.55",
    ),
]

BY_NAME: Dict[str, HuggingFaceModel] = {model.name: model for model in MODELS}
HUGGINGFACE: List[Listed] = [model.listed for model in MODELS]
