"""The built-in model in float32 as transformers has it, with a reader of its own for the file."""

import torch
from transformers import GgufConfig, LlamaConfig, LlamaForCausalLM

from triolet.model.source import ModelSource

CONFIG = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
"""SmolLM2-135M-Instruct, as its authors published it."""


def read_builtin(source: ModelSource) -> LlamaForCausalLM:
    """Given the configuration, transformers reads the file once less, which takes ten seconds."""
    where = {"gguf_file": source.path.name, "quantization_config": GgufConfig(dequantize=True)}
    model = LlamaForCausalLM.from_pretrained(source.path.parent, config=CONFIG, dtype=torch.float32, **where)
    return model.eval()
