"""The models of the suite `huggingface` and their sizes, as data: no torch, no transformers."""

from typing import Any, Dict, List, NamedTuple, Tuple

from torchyard.worker.catalog.entry import BOTH, ListedWorkload

Sizes = Dict[str, Any]


def _encoder(hidden: int, layers: int, heads: int, vocabulary: int, **more: Any) -> Sizes:
    """A stack of encoder layers whose inner width is four times the outer one."""
    return dict(
        {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden,
            "max_position_embeddings": 512,
        },
        **more,
    )


def _pair(
    width: int, encoder: int, decoder: int, heads: int, vocabulary: int, **more: Any
) -> Sizes:
    """An encoder and a decoder of equal width, inner width four times the outer one."""
    return dict(
        {
            "vocab_size": vocabulary,
            "d_model": width,
            "encoder_layers": encoder,
            "decoder_layers": decoder,
            "encoder_attention_heads": heads,
            "decoder_attention_heads": heads,
            "encoder_ffn_dim": 4 * width,
            "decoder_ffn_dim": 4 * width,
            "max_position_embeddings": 1024,
        },
        **more,
    )


def _decoder(
    hidden: int, inner: int, layers: int, heads: int, groups: int, head: int, **more: Any
) -> Sizes:
    """A decoder with grouped keys and values: `groups` of them, each head `head` wide."""
    return dict(
        {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "head_dim": head,
        },
        **more,
    )


# Encoders.
ALBERT_XXLARGE = _encoder(
    4096, 12, 64, 30000, embedding_size=128, num_hidden_groups=1, inner_group_num=1
)
BERT_BASE = _encoder(768, 12, 12, 30522, type_vocab_size=2)
# Position ids start after the padding id, so that 514 positions hold 512 tokens.
ROBERTA_BASE = _encoder(
    768, 12, 12, 50265, type_vocab_size=1, max_position_embeddings=514, layer_norm_eps=1e-5
)
CAMEMBERT_BASE = dict(ROBERTA_BASE, vocab_size=32005)
LONGFORMER_BASE = dict(
    ROBERTA_BASE, max_position_embeddings=4098, attention_window=512, pad_token_id=1
)
CONVBERT_BASE = _encoder(
    768, 12, 12, 30522, embedding_size=768, head_ratio=2, conv_kernel_size=9, num_groups=1
)
DEBERTA_V2_XLARGE = _encoder(
    1536, 24, 24, 128100, type_vocab_size=0, relative_attention=False, position_biased_input=True
)
DISTILBERT_BASE: Sizes = {
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "max_position_embeddings": 512,
}
ELECTRA_SMALL = _encoder(256, 12, 4, 30522, embedding_size=128)
FNET_BASE: Sizes = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 4,
    "use_tpu_fourier_optimizations": False,
}
LAYOUTLM_BASE = dict(BERT_BASE, max_2d_position_embeddings=1024)
MEGATRON_BERT_345M = _encoder(1024, 24, 16, 29056)
MOBILEBERT = _encoder(
    512,
    24,
    4,
    30522,
    intermediate_size=512,
    embedding_size=128,
    intra_bottleneck_size=128,
    num_feedforward_networks=4,
    use_bottleneck=True,
    trigram_input=True,
)
XLNET_LARGE: Sizes = {
    "vocab_size": 32000,
    "d_model": 1024,
    "n_layer": 24,
    "n_head": 16,
    "d_inner": 4096,
}

# Encoders with decoders.
BART_LARGE = _pair(1024, 12, 12, 16, 50265)
BLENDERBOT_3B = _pair(2560, 2, 24, 32, 8008, max_position_embeddings=128)
BLENDERBOT_SMALL = _pair(512, 8, 8, 16, 50265, max_position_embeddings=512)
M2M100_418M = _pair(1024, 12, 12, 16, 128112)
MBART = _pair(1024, 12, 12, 16, 50265)
PEGASUS = _pair(1024, 12, 12, 16, 50265)
PLBART_BASE = _pair(768, 6, 6, 12, 50005)
WHISPER_TINY: Sizes = {
    "vocab_size": 51865,
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
T5_SMALL: Sizes = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": 6,
    "num_heads": 8,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
}
MT5_SMALL: Sizes = {
    "vocab_size": 250112,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
TROCR_BASE: Sizes = {
    "vocab_size": 50265,
    "d_model": 1024,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 512,
}

# Decoders.
GPT2_SMALL: Sizes = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
}
DISTILGPT2 = dict(GPT2_SMALL, n_layer=6)
GPTJ_6B: Sizes = {
    "vocab_size": 50400,
    "n_positions": 2048,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "rotary_dim": 64,
    "tie_word_embeddings": False,
}
GPT_NEO_1_3B: Sizes = {
    "vocab_size": 50257,
    "max_position_embeddings": 2048,
    "hidden_size": 2048,
    "num_layers": 24,
    "num_heads": 16,
    "window_size": 256,
}
OPT_125M: Sizes = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 768,
    "do_layer_norm_before": True,
}
XGLM_564M: Sizes = {
    "vocab_size": 256008,
    "d_model": 1024,
    "ffn_dim": 4096,
    "num_layers": 24,
    "attention_heads": 16,
    "max_position_embeddings": 2048,
}
LLAMA_3_2_1B = _decoder(
    2048,
    8192,
    16,
    32,
    8,
    64,
    vocab_size=128256,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    rope_theta=500000.0,
    rope_scaling={
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
)
GEMMA_2_2B = _decoder(
    2304,
    9216,
    26,
    8,
    4,
    256,
    vocab_size=256000,
    max_position_embeddings=8192,
    sliding_window=4096,
    query_pre_attn_scalar=256,
    attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
    tie_word_embeddings=True,
)
GEMMA_3_4B: Sizes = {
    "text_config": _decoder(
        2560,
        10240,
        34,
        8,
        4,
        256,
        vocab_size=262208,
        max_position_embeddings=131072,
        sliding_window=1024,
        query_pre_attn_scalar=256,
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 896,
        "patch_size": 14,
        "vision_use_head": False,
    },
    "mm_tokens_per_image": 256,
}
QWEN3_0_6B = _decoder(
    1024,
    3072,
    28,
    16,
    8,
    128,
    vocab_size=151936,
    max_position_embeddings=40960,
    tie_word_embeddings=True,
    rope_theta=1000000.0,
)
MISTRAL_7B = _decoder(
    4096,
    14336,
    32,
    32,
    8,
    128,
    vocab_size=32768,
    max_position_embeddings=32768,
    sliding_window=None,
    tie_word_embeddings=False,
    rms_norm_eps=1e-5,
    rope_theta=1000000.0,
)
GPT_OSS_20B = _decoder(
    2880,
    2880,
    24,
    64,
    8,
    64,
    vocab_size=201088,
    num_local_experts=32,
    num_experts_per_tok=4,
    sliding_window=128,
    max_position_embeddings=131072,
    tie_word_embeddings=False,
)


INFERENCE = ("inference",)


class HuggingFaceModel(NamedTuple):
    """A listed model: name, model class, sizes, and the length of its inputs.

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
    def listed(self) -> ListedWorkload:
        """Its entry in the catalogue."""
        return ListedWorkload(
            self.name, self.modes, self.about, self.gpu_batch_size, self.cpu_batch_size
        )


def _of_class(
    name: str,
    about: str,
    values: Dict[str, Any],
    length: int,
    gpu: int,
    cpu: int,
    modes: Tuple[str, ...] = BOTH,
) -> HuggingFaceModel:
    """Return a model whose name is that of its class."""
    return HuggingFaceModel(name, about, name, values, length, gpu, cpu, modes)


MODELS: List[HuggingFaceModel] = [
    _of_class("AlbertForMaskedLM", "ALBERT xxlarge", ALBERT_XXLARGE, 512, 4, 4),
    _of_class("AlbertForQuestionAnswering", "ALBERT xxlarge", ALBERT_XXLARGE, 512, 4, 4),
    HuggingFaceModel(
        "AllenaiLongformerBase",
        "Longformer base, masked tokens",
        "LongformerForMaskedLM",
        LONGFORMER_BASE,
        1024,
        4,
        4,
    ),
    _of_class("BartForCausalLM", "decoder of BART large", BART_LARGE, 1024, 4, 4),
    _of_class("BartForConditionalGeneration", "BART large", BART_LARGE, 1024, 2, 2),
    _of_class("BertForMaskedLM", "BERT base", BERT_BASE, 512, 16, 16),
    _of_class("BertForQuestionAnswering", "BERT base", BERT_BASE, 512, 16, 16),
    _of_class("BlenderbotForCausalLM", "decoder of Blenderbot 3B", BLENDERBOT_3B, 128, 4, 4),
    _of_class("BlenderbotForConditionalGeneration", "Blenderbot 3B", BLENDERBOT_3B, 128, 16, 4),
    _of_class(
        "BlenderbotSmallForCausalLM",
        "decoder of a small Blenderbot",
        BLENDERBOT_SMALL,
        128,
        64,
        32,
    ),
    _of_class(
        "BlenderbotSmallForConditionalGeneration",
        "a small Blenderbot",
        BLENDERBOT_SMALL,
        128,
        64,
        32,
    ),
    HuggingFaceModel(
        "CamemBert",
        "CamemBERT base, masked tokens",
        "CamembertForMaskedLM",
        CAMEMBERT_BASE,
        512,
        16,
        16,
    ),
    _of_class(
        "DebertaV2ForMaskedLM",
        "DeBERTa-v2 xlarge without relative positions",
        DEBERTA_V2_XLARGE,
        512,
        2,
        2,
    ),
    _of_class(
        "DebertaV2ForQuestionAnswering",
        "DeBERTa-v2 xlarge without relative positions",
        DEBERTA_V2_XLARGE,
        512,
        4,
        2,
    ),
    _of_class("DistilBertForMaskedLM", "DistilBERT base", DISTILBERT_BASE, 128, 128, 128),
    _of_class("DistilBertForQuestionAnswering", "DistilBERT base", DISTILBERT_BASE, 128, 256, 128),
    HuggingFaceModel("DistillGPT2", "DistilGPT2", "GPT2LMHeadModel", DISTILGPT2, 512, 16, 16),
    _of_class("ElectraForCausalLM", "ELECTRA small", ELECTRA_SMALL, 512, 32, 8),
    _of_class("ElectraForQuestionAnswering", "ELECTRA small", ELECTRA_SMALL, 512, 64, 8),
    _of_class("GPT2ForSequenceClassification", "GPT-2 small", GPT2_SMALL, 1024, 4, 4),
    _of_class("GPTJForCausalLM", "GPT-J 6B", GPTJ_6B, 128, 1, 1, INFERENCE),
    _of_class("GPTJForQuestionAnswering", "GPT-J 6B", GPTJ_6B, 128, 1, 1, INFERENCE),
    _of_class("GPTNeoForCausalLM", "GPT-Neo 1.3B", GPT_NEO_1_3B, 128, 32, 2),
    _of_class("GPTNeoForSequenceClassification", "GPT-Neo 1.3B", GPT_NEO_1_3B, 128, 32, 2),
    HuggingFaceModel(
        "GoogleFnet", "FNet base, masked tokens", "FNetForMaskedLM", FNET_BASE, 512, 16, 16
    ),
    _of_class("LayoutLMForMaskedLM", "LayoutLM base", LAYOUTLM_BASE, 512, 16, 16),
    _of_class("LayoutLMForSequenceClassification", "LayoutLM base", LAYOUTLM_BASE, 512, 16, 16),
    _of_class("M2M100ForConditionalGeneration", "M2M100 418M", M2M100_418M, 128, 16, 16),
    _of_class("MBartForCausalLM", "decoder of an mBART large", MBART, 1024, 4, 4),
    _of_class("MBartForConditionalGeneration", "an mBART large", MBART, 1024, 2, 2),
    _of_class("MT5ForConditionalGeneration", "mT5 small", MT5_SMALL, 128, 16, 16),
    _of_class("MegatronBertForCausalLM", "Megatron-BERT 345M", MEGATRON_BERT_345M, 512, 4, 4),
    _of_class(
        "MegatronBertForQuestionAnswering",
        "Megatron-BERT 345M",
        MEGATRON_BERT_345M,
        512,
        8,
        4,
    ),
    _of_class("MobileBertForMaskedLM", "MobileBERT", MOBILEBERT, 128, 128, 64),
    _of_class("MobileBertForQuestionAnswering", "MobileBERT", MOBILEBERT, 128, 128, 64),
    _of_class("OPTForCausalLM", "OPT 125M", OPT_125M, 2048, 2, 2),
    _of_class("PLBartForCausalLM", "decoder of PLBART base", PLBART_BASE, 1024, 8, 8),
    _of_class("PLBartForConditionalGeneration", "PLBART base", PLBART_BASE, 1024, 4, 4),
    _of_class("PegasusForCausalLM", "decoder of a Pegasus", PEGASUS, 128, 32, 32),
    _of_class("PegasusForConditionalGeneration", "a Pegasus", PEGASUS, 128, 32, 16),
    _of_class("RobertaForCausalLM", "RoBERTa base", ROBERTA_BASE, 512, 16, 16),
    _of_class("RobertaForQuestionAnswering", "RoBERTa base", ROBERTA_BASE, 512, 16, 16),
    _of_class("T5ForConditionalGeneration", "T5 small", T5_SMALL, 1024, 4, 4),
    HuggingFaceModel("T5Small", "T5 small", "T5ForConditionalGeneration", T5_SMALL, 1024, 4, 1),
    _of_class("TrOCRForCausalLM", "decoder of TrOCR base", TROCR_BASE, 256, 32, 32),
    _of_class("XGLMForCausalLM", "XGLM 564M", XGLM_564M, 128, 8, 8),
    _of_class("XLNetLMHeadModel", "XLNet large", XLNET_LARGE, 512, 8, 8),
    HuggingFaceModel(
        "YituTechConvBert",
        "ConvBERT base, masked tokens",
        "ConvBertForMaskedLM",
        CONVBERT_BASE,
        512,
        16,
        16,
    ),
    # PyTorch's benchmark harness generates text with these; here they process a prompt of the same length.
    HuggingFaceModel("Llama-3.2-1B", "Llama 3.2 1B", "LlamaForCausalLM", LLAMA_3_2_1B, 1000, 1, 1),
    HuggingFaceModel(
        "gemma-2-2b",
        "Gemma 2 2B",
        "Gemma2ForCausalLM",
        GEMMA_2_2B,
        1000,
        1,
        1,
        since="4.42",
    ),
    HuggingFaceModel(
        "gemma-3-4b-it",
        "Gemma 3 4B with its image encoder, text input",
        "Gemma3ForConditionalGeneration",
        GEMMA_3_4B,
        1000,
        1,
        1,
        INFERENCE,
        since="4.50",
    ),
    HuggingFaceModel(
        "whisper-tiny",
        "Whisper tiny, 30 s of audio",
        "WhisperForConditionalGeneration",
        WHISPER_TINY,
        128,
        1,
        1,
    ),
    HuggingFaceModel(
        "Qwen3-0.6B",
        "Qwen3 0.6B",
        "Qwen3ForCausalLM",
        QWEN3_0_6B,
        1000,
        1,
        1,
        since="4.51",
    ),
    HuggingFaceModel(
        "Mistral-7B-Instruct-v0.3",
        "Mistral 7B",
        "MistralForCausalLM",
        MISTRAL_7B,
        1000,
        1,
        1,
        INFERENCE,
    ),
    HuggingFaceModel(
        "gpt-oss-20b",
        "gpt-oss 20B, 4 of 32 experts active",
        "GptOssForCausalLM",
        GPT_OSS_20B,
        1000,
        1,
        1,
        INFERENCE,
        since="4.55",
    ),
]

BY_NAME: Dict[str, HuggingFaceModel] = {model.name: model for model in MODELS}
HUGGINGFACE: List[ListedWorkload] = [model.listed for model in MODELS]
