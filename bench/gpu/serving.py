"""Tokens a second through HTTP, and through transformers' continuous batching, of one random model on the same card.

The model is written to a folder as a checkpoint, so that both load it as they load any other. The server is a process
of its own; its clients are in this one, and on the same machine.
"""

import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch
import trio

from triolet.api.bench.load import Pace, run_load
from triolet.api.bench.measure import summarize
from triolet.api.bench.prompts import Ask
from triolet.api.bench.target import probe
from triolet.model.places import layer_parts
from triolet.model.spec import ModelSpec

from .table import Row

START_S = 240
FIRST_TOKEN = 300
"""Below it are the tokenizer's bytes and special tokens."""


@attrs.frozen(kw_only=True)
class Load:
    """What is sent."""

    streams: int
    requests: int
    input_len: int
    output_len: int
    batching: dict[str, int] = attrs.field(factory=dict)
    """Bounds for transformers' cache, which takes all memory there is otherwise: on a card that is meant."""


def write_checkpoint(folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
    """Random weights, a configuration, and a tokenizer that has a token for every number."""
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    shapes = {
        "model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size),
        "model.norm.weight": (spec.hidden_size,),
    }
    for layer in range(spec.num_layers):
        for parts in layer_parts(spec, layer).values():
            shapes |= parts
    tensors = {name: (torch.randn(shape, device=device) * 0.02).to(dtype).cpu() for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "max_position_embeddings": spec.max_position_embeddings,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "hidden_act": "silu",
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"w{i}" for i in range(spec.vocab_size - len(words))]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def prompts(spec: ModelSpec, load: Load) -> list[tuple[int, ...]]:
    """Random tokens, nothing shared."""
    rng = random.Random(0)
    return [tuple(rng.choices(range(FIRST_TOKEN, spec.vocab_size), k=load.input_len)) for _ in range(load.requests)]


def through_http(folder: Path, spec: ModelSpec, load: Load, flags: list[str]) -> list[Row]:
    """`triolet serve`, streamed."""
    with _server(folder, flags) as url:
        summary = trio.run(_ask, url, prompts(spec, load), load)
    if summary.num_failed:
        return [Row(what="HTTP", value=f"{summary.num_failed} requests failed: {summary.errors}"[:120], ok=False)]
    name = f"HTTP, {load.streams} streams, {load.input_len} in, {load.output_len} out"
    speed = summary.output_tokens_per_s
    detail = f"{speed:,.0f} tokens/s, TPOT {summary.tpot_ms.p50:.1f} ms"
    return [Row(what=name, value=detail)]


async def _ask(url: str, asked: list[tuple[int, ...]], load: Load):  # type: ignore[no-untyped-def]
    target = await probe(url, name="A")
    sessions = [(Ask(content=prompt, max_tokens=load.output_len),) for prompt in asked]
    warm = [(Ask(content=prompt[::-1], max_tokens=2),) for prompt in asked[: load.streams]]
    await run_load(target, warm, Pace(concurrency=load.streams))
    return summarize([await run_load(target, sessions, Pace(concurrency=load.streams))])


@contextlib.contextmanager
def _server(folder: Path, flags: list[str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from triolet.api.cli import main; main()", "serve", str(folder)]
    process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port), *flags], stderr=subprocess.PIPE)
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            assert process.stderr is not None
            raise RuntimeError(f"the server did not start: {process.stderr.read().decode()[-400:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            if b" 200 " in connection.recv(64):
                return
        time.sleep(0.1)
    raise RuntimeError(f"the server has not started in {START_S} s")


def through_transformers(
    folder: Path, spec: ModelSpec, load: Load, dtype: torch.dtype, device: torch.device
) -> list[Row]:
    """`generate_batch` of the same prompts, greedily, without HTTP. Not to be had is no failure of ours."""
    name = f"transformers, {load.requests} requests, no HTTP"
    try:
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        # An end token that never comes, so that every answer is as long as ours.
        config = GenerationConfig(max_new_tokens=load.output_len, do_sample=False, eos_token_id=-1, pad_token_id=0)
        asked = [list(prompt) for prompt in prompts(spec, load)]
        begun = time.perf_counter()
        with torch.inference_mode():
            answers = model.generate_batch(
                inputs=asked,
                generation_config=config,
                continuous_batching_config=ContinuousBatchingConfig(**load.batching),
                progress_bar=False,
            )
        seconds = time.perf_counter() - begun
        tokens = sum(len(answer.generated_tokens) for answer in answers.values())
        if tokens < load.requests * load.output_len:
            raise RuntimeError(f"{tokens} tokens came of {load.requests * load.output_len}")
    except Exception as error:
        return [Row(what=name, value=f"not to be had: {type(error).__name__}: {error}"[:110])]
    return [Row(what=name, value=f"{tokens / seconds:,.0f} tokens/s")]
