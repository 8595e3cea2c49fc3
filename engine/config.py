"""The one configuration of an engine: frozen, built once, its names vLLM's where vLLM has one.

What the machine decides (how many blocks fit, which dtype) is derived later, in `build.py`, into objects of their own.
"""

from typing import Any, Literal

import attrs

from .core.errors import ConfigurationError

GPU_MEMORY_UTILIZATION = 0.92
"""Of a GPU's memory, where no flag says how much; as in vLLM. What serves and what plans share it."""


def _at_least(low: int):  # type: ignore[no-untyped-def]
    def check(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
        if value is not None and not value >= low:
            flag = "--" + attribute.name.replace("_", "-")
            raise ConfigurationError(f"{flag} must be at least {low}, not {value}.")

    return check


def _one_of(*names: str | int | None):  # type: ignore[no-untyped-def]
    def check(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value not in names:
            flag = "--" + attribute.name.replace("_", "-")
            known = ", ".join(str(name) for name in names if name is not None)
            raise ConfigurationError(f"{flag} must be one of {known}, not {value!r}.")

    return check


@attrs.frozen(kw_only=True)
class EngineConfig:
    """How to load a model and how to run it."""

    model: str | None = None
    """A folder, a .gguf file or a hub name (owner/name); None is the built-in model."""
    chat_template: str | None = None
    """A chat template in place of the model's own: a file, or the template itself."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type of weights and KV cache; auto follows the model and the machine."""
    max_model_len: int | None = attrs.field(default=None, validator=_at_least(2))
    """Most tokens of a request, prompt and answer together; None is what the model was made for."""
    max_num_seqs: int = attrs.field(default=256, validator=_at_least(1))
    """Most sequences in a step."""
    max_num_batched_tokens: int = attrs.field(default=2048, validator=_at_least(1))
    """Most tokens in a step."""
    long_prefill_token_threshold: int = attrs.field(default=0, validator=_at_least(0))
    """Most prompt tokens of one sequence in a step; 0 sets no limit below the step's."""
    prefill_tokens_beside_decodes: int | None = attrs.field(default=None, validator=_at_least(0))
    """Most prompt tokens in a step in which others decode: it bounds how long a stream stands still while a long prompt
    arrives. None: 320 on a CPU, no limit on a GPU; 0 sets no limit."""
    max_steps_in_flight: Literal[1, 2] | None = attrs.field(default=None, validator=_one_of(1, 2, None))
    """Steps on the device at a time: with 2 the next is planned while one computes, and an answer that ends has one
    step computed in vain. None: 2 on a GPU, 1 on a CPU."""
    block_size: int = attrs.field(default=16, validator=_at_least(1))
    """Tokens in a KV block."""
    kv_cache_memory: int | None = attrs.field(default=None, validator=_at_least(1))
    """Bytes for the KV cache (the command line also takes 512M or 2GiB); None takes a quarter of the free memory, at
    most 4 GiB, on a CPU, and fills a GPU."""
    kv_cache_prefault: int = attrs.field(default=1 << 30, validator=_at_least(0))
    """On a CPU so many bytes of the KV cache, or all of it, are taken from the system in advance, while cores are idle;
    the others when a step first writes there, which makes that step longer."""
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    """The share of the GPU's memory that weights, activations and KV cache may take together."""
    enable_prefix_caching: bool = True
    """Keep the KV blocks of prompts and answers for requests that begin alike, until their room is needed."""
    scheduling_policy: str = "fcfs"
    """Who goes first: fcfs, priority, fair (tokens shared among keys), or package.module:Class of your own."""
    max_num_queued_reqs: int = attrs.field(default=1024, validator=_at_least(1))
    """Most requests waiting for admission; past it a request is refused with 503 before it is tokenized."""
    max_num_queued_tokens: int = attrs.field(default=0, validator=_at_least(0))
    """Most prompt tokens waiting for admission, estimated before they are tokenized; 0 sets no limit."""
    runner: Literal["thread", "process"] = attrs.field(default="thread", validator=_one_of("thread", "process"))
    """Where the model runs: in a thread of this process, or in a process of its own, which is replaced when it dies."""
    step_timeout: float = attrs.field(default=60.0, validator=_at_least(0))
    """Seconds after which a step that has not landed turns /health and has a runner process replaced; 0: never."""
    max_runner_losses: int = attrs.field(default=3, validator=_at_least(0))
    """How often in a row a runner process is replaced; the next loss ends the engine."""
    quantization: Literal["none", "fp8", "int8", "int4"] = attrs.field(
        default="none", validator=_one_of("none", "fp8", "int8", "int4")
    )
    """Weights of fewer bits. On a CPU int8 by output channel, or int4 in groups of 32, beside int8 for larger batches;
    a GGUF file's own 4-bit weights stay as they are with int4. On a GPU fp8, weights and activations, from Hopper on;
    int8 and int4, weights alone, with torchao installed."""
    kv_cache_dtype: Literal["auto", "fp8", "int8"] = attrs.field(
        default="auto", validator=_one_of("auto", "fp8", "int8")
    )
    """The type of the KV cache: auto is --dtype; int8 has a scale for each token and head, on a CPU; fp8 (e4m3) a scale
    for each head, on a GPU."""
    enforce_eager: bool = False
    """On a GPU record no CUDA graphs: slower steps, a faster start, some memory less."""
    num_kept_requests: int = attrs.field(default=256, validator=_at_least(0))
    """Ended requests whose story GET /v1/requests/{id} still tells."""
    jump_forward: bool = True
    """Where the grammar of an answer leaves no choice, go on without sampling, several tokens in a step."""
    max_logprobs: int = attrs.field(default=20, validator=_at_least(-1))
    """Most rivals of a token whose log-probabilities a request may ask for; -1: all of the vocabulary."""
    attention_backend: str | None = None
    """A name from the registry of attention backends; None chooses by platform. On a CPU, native runs whole steps."""
    seed: int = 0
    """Seeds the requests that bring no seed of their own."""

    def __attrs_post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigurationError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least --max-num-seqs "
                f"({self.max_num_seqs}): every running sequence gets a token in every step."
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigurationError(
                f"--gpu-memory-utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}."
            )
