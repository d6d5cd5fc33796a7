"""The models of the suite `huggingface` and their sizes, as data: no torch, no transformers."""

from typing import Any, Dict, List, NamedTuple, Tuple

from torchyard.worker.catalog.entry import (
    BOTH,
    INFERENCE,
    PHASES,
    ListedWorkload,
    parameters,
    table_rows,
)

Sizes = Dict[str, Any]


def _encoder(hidden: int, layers: int, heads: int, vocabulary: int, more: str = "") -> Sizes:
    """A stack of encoder layers whose inner width is four times the outer one."""
    return parameters(
        f"vocab_size={vocabulary} hidden_size={hidden} num_hidden_layers={layers} "
        f"num_attention_heads={heads} intermediate_size={4 * hidden} "
        f"max_position_embeddings=512 {more}"
    )


def _pair(width: int, layers: int, heads: int, vocabulary: int, more: str = "") -> Sizes:
    """An encoder and a decoder of equal width and depth, inner width four times the outer one."""
    return parameters(
        f"vocab_size={vocabulary} d_model={width} encoder_layers={layers} decoder_layers={layers} "
        f"encoder_attention_heads={heads} decoder_attention_heads={heads} "
        f"encoder_ffn_dim={4 * width} decoder_ffn_dim={4 * width} "
        f"max_position_embeddings=1024 {more}"
    )


_BERT_BASE = _encoder(768, 12, 12, 30522, "type_vocab_size=2")
# Position ids start after the padding id, so that 514 positions hold 512 tokens.
_ROBERTA_BASE = _encoder(
    768, 12, 12, 50265, "type_vocab_size=1 max_position_embeddings=514 layer_norm_eps=1e-5"
)
_GPT2_SMALL = parameters("vocab_size=50257 n_positions=1024 n_embd=768 n_layer=12 n_head=12")

SIZES: Dict[str, Sizes] = {
    # Encoders.
    "albert_xxlarge": _encoder(
        4096, 12, 64, 30000, "embedding_size=128 num_hidden_groups=1 inner_group_num=1"
    ),
    "bert_base": _BERT_BASE,
    "roberta_base": _ROBERTA_BASE,
    "camembert_base": dict(_ROBERTA_BASE, vocab_size=32005),
    "longformer_base": dict(
        _ROBERTA_BASE, max_position_embeddings=4098, attention_window=512, pad_token_id=1
    ),
    "convbert_base": _encoder(
        768, 12, 12, 30522, "embedding_size=768 head_ratio=2 conv_kernel_size=9 num_groups=1"
    ),
    "deberta_v2_xlarge": _encoder(
        1536,
        24,
        24,
        128100,
        "type_vocab_size=0 relative_attention=False position_biased_input=True",
    ),
    "distilbert_base": parameters(
        "vocab_size=30522 dim=768 n_layers=6 n_heads=12 hidden_dim=3072 max_position_embeddings=512"
    ),
    "electra_small": _encoder(256, 12, 4, 30522, "embedding_size=128"),
    "fnet_base": parameters(
        "vocab_size=32000 hidden_size=768 num_hidden_layers=12 intermediate_size=3072 "
        "max_position_embeddings=512 type_vocab_size=4 use_tpu_fourier_optimizations=False"
    ),
    "layoutlm_base": dict(_BERT_BASE, max_2d_position_embeddings=1024),
    "megatron_bert_345m": _encoder(1024, 24, 16, 29056),
    "mobilebert": _encoder(
        512,
        24,
        4,
        30522,
        "intermediate_size=512 embedding_size=128 intra_bottleneck_size=128 "
        "num_feedforward_networks=4 use_bottleneck=True trigram_input=True",
    ),
    "xlnet_large": parameters("vocab_size=32000 d_model=1024 n_layer=24 n_head=16 d_inner=4096"),
    # Encoders with decoders.
    "bart_large": _pair(1024, 12, 16, 50265),
    "blenderbot_3b": _pair(2560, 24, 32, 8008, "encoder_layers=2 max_position_embeddings=128"),
    "blenderbot_small": _pair(512, 8, 16, 50265, "max_position_embeddings=512"),
    "m2m100_418m": _pair(1024, 12, 16, 128112),
    "mbart": _pair(1024, 12, 16, 50265),
    "pegasus": _pair(1024, 12, 16, 50265),
    "plbart_base": _pair(768, 6, 12, 50005),
    "whisper_tiny": parameters(
        "vocab_size=51865 d_model=384 encoder_layers=4 decoder_layers=4 encoder_attention_heads=6 "
        "decoder_attention_heads=6 encoder_ffn_dim=1536 decoder_ffn_dim=1536 num_mel_bins=80 "
        "max_source_positions=1500 max_target_positions=448"
    ),
    "t5_small": parameters(
        "vocab_size=32128 d_model=512 d_kv=64 d_ff=2048 num_layers=6 num_decoder_layers=6 "
        "num_heads=8 feed_forward_proj='relu' tie_word_embeddings=True"
    ),
    "mt5_small": parameters(
        "vocab_size=250112 d_model=512 d_kv=64 d_ff=1024 num_layers=8 num_decoder_layers=8 "
        "num_heads=6 feed_forward_proj='gated-gelu' tie_word_embeddings=False"
    ),
    "trocr_base": parameters(
        "vocab_size=50265 d_model=1024 decoder_layers=12 decoder_attention_heads=16 "
        "decoder_ffn_dim=4096 max_position_embeddings=512"
    ),
    # Decoders.
    "gpt2_small": _GPT2_SMALL,
    "distilgpt2": dict(_GPT2_SMALL, n_layer=6),
    "gptj_6b": parameters(
        "vocab_size=50400 n_positions=2048 n_embd=4096 n_layer=28 n_head=16 rotary_dim=64 "
        "tie_word_embeddings=False"
    ),
    "gpt_neo_1_3b": parameters(
        "vocab_size=50257 max_position_embeddings=2048 hidden_size=2048 num_layers=24 num_heads=16 "
        "window_size=256"
    ),
    "opt_125m": parameters(
        "vocab_size=50272 hidden_size=768 num_hidden_layers=12 ffn_dim=3072 num_attention_heads=12 "
        "max_position_embeddings=2048 word_embed_proj_dim=768 do_layer_norm_before=True"
    ),
    "xglm_564m": parameters(
        "vocab_size=256008 d_model=1024 ffn_dim=4096 num_layers=24 attention_heads=16 "
        "max_position_embeddings=2048"
    ),
    "llama_3_2_1b": dict(
        parameters(
            "hidden_size=2048 intermediate_size=8192 num_hidden_layers=16 "
            "num_attention_heads=32 num_key_value_heads=8 head_dim=64 vocab_size=128256 "
            "max_position_embeddings=131072 rms_norm_eps=1e-5 tie_word_embeddings=True "
            "rope_theta=500000.0"
        ),
        rope_scaling=parameters(
            "rope_type='llama3' factor=32.0 low_freq_factor=1.0 high_freq_factor=4.0 "
            "original_max_position_embeddings=8192"
        ),
    ),
    "gemma_2_2b": parameters(
        "hidden_size=2304 intermediate_size=9216 num_hidden_layers=26 num_attention_heads=8 "
        "num_key_value_heads=4 head_dim=256 vocab_size=256000 max_position_embeddings=8192 "
        "sliding_window=4096 query_pre_attn_scalar=256 attn_logit_softcapping=50.0 "
        "final_logit_softcapping=30.0 tie_word_embeddings=True"
    ),
    "gemma_3_4b": {
        "text_config": dict(
            parameters(
                "hidden_size=2560 intermediate_size=10240 num_hidden_layers=34 "
                "num_attention_heads=8 num_key_value_heads=4 head_dim=256 vocab_size=262208 "
                "max_position_embeddings=131072 sliding_window=1024 query_pre_attn_scalar=256 "
                "rope_theta=1000000.0 rope_local_base_freq=10000.0"
            ),
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        "vision_config": parameters(
            "hidden_size=1152 intermediate_size=4304 num_hidden_layers=27 num_attention_heads=16 "
            "image_size=896 patch_size=14 vision_use_head=False"
        ),
        "mm_tokens_per_image": 256,
    },
    "clip_base": {
        "text_config": parameters(
            "vocab_size=49408 hidden_size=512 intermediate_size=2048 num_hidden_layers=12 "
            "num_attention_heads=8 max_position_embeddings=77 projection_dim=512"
        ),
        "vision_config": parameters(
            "hidden_size=768 intermediate_size=3072 num_hidden_layers=12 num_attention_heads=12 "
            "image_size=224 patch_size=32 projection_dim=512"
        ),
        "projection_dim": 512,
    },
    "qwen3_0_6b": parameters(
        "hidden_size=1024 intermediate_size=3072 num_hidden_layers=28 num_attention_heads=16 "
        "num_key_value_heads=8 head_dim=128 vocab_size=151936 max_position_embeddings=40960 "
        "tie_word_embeddings=True rope_theta=1000000.0"
    ),
    "mistral_7b": parameters(
        "hidden_size=4096 intermediate_size=14336 num_hidden_layers=32 num_attention_heads=32 "
        "num_key_value_heads=8 head_dim=128 vocab_size=32768 max_position_embeddings=32768 "
        "sliding_window=None tie_word_embeddings=False rms_norm_eps=1e-5 rope_theta=1000000.0"
    ),
    "gpt_oss_20b": parameters(
        "hidden_size=2880 intermediate_size=2880 num_hidden_layers=24 num_attention_heads=64 "
        "num_key_value_heads=8 head_dim=64 vocab_size=201088 num_local_experts=32 "
        "num_experts_per_tok=4 sliding_window=128 max_position_embeddings=131072 "
        "tie_word_embeddings=False"
    ),
}


class HuggingFaceModel(NamedTuple):
    """A listed model: name, model class, sizes, and the length of its inputs.

    since   the first transformers that has the class, where that is not long ago
    """

    name: str
    about: str
    model_class: str
    sizes: Sizes
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


# Name, model class (=: the name), sizes, input length, batch size on a large GPU and on a large server,
# modes, first transformers version, description.
_MODELS = """
AlbertForMaskedLM                       | =                               | albert_xxlarge     | 512  | 4   | 4   | both      | -    | ALBERT xxlarge
AlbertForQuestionAnswering              | =                               | albert_xxlarge     | 512  | 4   | 4   | both      | -    | ALBERT xxlarge
AllenaiLongformerBase                   | LongformerForMaskedLM           | longformer_base    | 1024 | 4   | 4   | both      | -    | Longformer base, masked tokens
BartForCausalLM                         | =                               | bart_large         | 1024 | 4   | 4   | both      | -    | decoder of BART large
BartForConditionalGeneration            | =                               | bart_large         | 1024 | 2   | 2   | both      | -    | BART large
BertForMaskedLM                         | =                               | bert_base          | 512  | 16  | 16  | both      | -    | BERT base
BertForQuestionAnswering                | =                               | bert_base          | 512  | 16  | 16  | both      | -    | BERT base
BlenderbotForCausalLM                   | =                               | blenderbot_3b      | 128  | 4   | 4   | both      | -    | decoder of Blenderbot 3B
BlenderbotForConditionalGeneration      | =                               | blenderbot_3b      | 128  | 16  | 4   | both      | -    | Blenderbot 3B
BlenderbotSmallForCausalLM              | =                               | blenderbot_small   | 128  | 64  | 32  | both      | -    | decoder of a small Blenderbot
BlenderbotSmallForConditionalGeneration | =                               | blenderbot_small   | 128  | 64  | 32  | both      | -    | a small Blenderbot
CamemBert                               | CamembertForMaskedLM            | camembert_base     | 512  | 16  | 16  | both      | -    | CamemBERT base, masked tokens
DebertaV2ForMaskedLM                    | =                               | deberta_v2_xlarge  | 512  | 2   | 2   | both      | -    | DeBERTa-v2 xlarge without relative positions
DebertaV2ForQuestionAnswering           | =                               | deberta_v2_xlarge  | 512  | 4   | 2   | both      | -    | DeBERTa-v2 xlarge without relative positions
DistilBertForMaskedLM                   | =                               | distilbert_base    | 128  | 128 | 128 | both      | -    | DistilBERT base
DistilBertForQuestionAnswering          | =                               | distilbert_base    | 128  | 256 | 128 | both      | -    | DistilBERT base
DistillGPT2                             | GPT2LMHeadModel                 | distilgpt2         | 512  | 16  | 16  | both      | -    | DistilGPT2
ElectraForCausalLM                      | =                               | electra_small      | 512  | 32  | 8   | both      | -    | ELECTRA small
ElectraForQuestionAnswering             | =                               | electra_small      | 512  | 64  | 8   | both      | -    | ELECTRA small
GPT2ForSequenceClassification           | =                               | gpt2_small         | 1024 | 4   | 4   | both      | -    | GPT-2 small
GPTJForCausalLM                         | =                               | gptj_6b            | 128  | 1   | 1   | inference | -    | GPT-J 6B
GPTJForQuestionAnswering                | =                               | gptj_6b            | 128  | 1   | 1   | inference | -    | GPT-J 6B
GPTNeoForCausalLM                       | =                               | gpt_neo_1_3b       | 128  | 32  | 2   | both      | -    | GPT-Neo 1.3B
GPTNeoForSequenceClassification         | =                               | gpt_neo_1_3b       | 128  | 32  | 2   | both      | -    | GPT-Neo 1.3B
GoogleFnet                              | FNetForMaskedLM                 | fnet_base          | 512  | 16  | 16  | both      | -    | FNet base, masked tokens
LayoutLMForMaskedLM                     | =                               | layoutlm_base      | 512  | 16  | 16  | both      | -    | LayoutLM base
LayoutLMForSequenceClassification       | =                               | layoutlm_base      | 512  | 16  | 16  | both      | -    | LayoutLM base
M2M100ForConditionalGeneration          | =                               | m2m100_418m        | 128  | 16  | 16  | both      | -    | M2M100 418M
MBartForCausalLM                        | =                               | mbart              | 1024 | 4   | 4   | both      | -    | decoder of an mBART large
MBartForConditionalGeneration           | =                               | mbart              | 1024 | 2   | 2   | both      | -    | an mBART large
MT5ForConditionalGeneration             | =                               | mt5_small          | 128  | 16  | 16  | both      | -    | mT5 small
MegatronBertForCausalLM                 | =                               | megatron_bert_345m | 512  | 4   | 4   | both      | -    | Megatron-BERT 345M
MegatronBertForQuestionAnswering        | =                               | megatron_bert_345m | 512  | 8   | 4   | both      | -    | Megatron-BERT 345M
MobileBertForMaskedLM                   | =                               | mobilebert         | 128  | 128 | 64  | both      | -    | MobileBERT
MobileBertForQuestionAnswering          | =                               | mobilebert         | 128  | 128 | 64  | both      | -    | MobileBERT
OPTForCausalLM                          | =                               | opt_125m           | 2048 | 2   | 2   | both      | -    | OPT 125M
PLBartForCausalLM                       | =                               | plbart_base        | 1024 | 8   | 8   | both      | -    | decoder of PLBART base
PLBartForConditionalGeneration          | =                               | plbart_base        | 1024 | 4   | 4   | both      | -    | PLBART base
PegasusForCausalLM                      | =                               | pegasus            | 128  | 32  | 32  | both      | -    | decoder of a Pegasus
PegasusForConditionalGeneration         | =                               | pegasus            | 128  | 32  | 16  | both      | -    | a Pegasus
RobertaForCausalLM                      | =                               | roberta_base       | 512  | 16  | 16  | both      | -    | RoBERTa base
RobertaForQuestionAnswering             | =                               | roberta_base       | 512  | 16  | 16  | both      | -    | RoBERTa base
T5ForConditionalGeneration              | =                               | t5_small           | 1024 | 4   | 4   | both      | -    | T5 small
T5Small                                 | T5ForConditionalGeneration      | t5_small           | 1024 | 4   | 1   | both      | -    | T5 small
TrOCRForCausalLM                        | =                               | trocr_base         | 256  | 32  | 32  | both      | -    | decoder of TrOCR base
XGLMForCausalLM                         | =                               | xglm_564m          | 128  | 8   | 8   | both      | -    | XGLM 564M
XLNetLMHeadModel                        | =                               | xlnet_large        | 512  | 8   | 8   | both      | -    | XLNet large
YituTechConvBert                        | ConvBertForMaskedLM             | convbert_base      | 512  | 16  | 16  | both      | -    | ConvBERT base, masked tokens
"""
# PyTorch's benchmark harness generates text with these; here they process a prompt of the same length.
_PROMPTED_MODELS = """
Llama-3.2-1B                            | LlamaForCausalLM                | llama_3_2_1b       | 1000 | 1   | 1   | both      | -    | Llama 3.2 1B
gemma-2-2b                              | Gemma2ForCausalLM               | gemma_2_2b         | 1000 | 1   | 1   | both      | 4.42 | Gemma 2 2B
gemma-3-4b-it                           | Gemma3ForConditionalGeneration  | gemma_3_4b         | 1000 | 1   | 1   | inference | 4.50 | Gemma 3 4B with its image encoder, text input
whisper-tiny                            | WhisperForConditionalGeneration | whisper_tiny       | 128  | 1   | 1   | both      | -    | Whisper tiny, 30 s of audio
Qwen3-0.6B                              | Qwen3ForCausalLM                | qwen3_0_6b         | 1000 | 1   | 1   | both      | 4.51 | Qwen3 0.6B
Mistral-7B-Instruct-v0.3                | MistralForCausalLM              | mistral_7b         | 1000 | 1   | 1   | inference | -    | Mistral 7B
gpt-oss-20b                             | GptOssForCausalLM               | gpt_oss_20b        | 1000 | 1   | 1   | inference | 4.55 | gpt-oss 20B, 4 of 32 experts active
"""
# Not in PyTorch's benchmark harness.
_FURTHER_MODELS = """
clip-vit-base-patch32                   | CLIPModel                       | clip_base          | 77   | 32  | 8   | both      | -    | CLIP base: encoders of images and texts
"""


# Classes whose phases of text generation run in a sweep of the whole suite: causal attention without a window.
_GENERATING = [
    "GPT2LMHeadModel",
    "GPTJForCausalLM",
    "GPTNeoForCausalLM",
    "LlamaForCausalLM",
    "OPTForCausalLM",
    "Qwen3ForCausalLM",
    "XGLMForCausalLM",
]


def _model(row: List[str]) -> HuggingFaceModel:
    name, model_class, sizes, length, gpu, cpu, modes, since, about = row
    model_class = name if model_class == "=" else model_class
    supported = INFERENCE if modes == "inference" else BOTH
    return HuggingFaceModel(
        name,
        about,
        model_class,
        SIZES[sizes],
        int(length),
        int(gpu),
        int(cpu),
        (*supported, *PHASES) if model_class in _GENERATING else supported,
        "" if since == "-" else since,
    )


MODELS: List[HuggingFaceModel] = [
    _model(row) for row in table_rows(_MODELS + _PROMPTED_MODELS + _FURTHER_MODELS)
]
BY_NAME: Dict[str, HuggingFaceModel] = {model.name: model for model in MODELS}
HUGGINGFACE: List[ListedWorkload] = [model.listed for model in MODELS]
