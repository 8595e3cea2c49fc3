"""The built-in model in float32: its greedy tokens equal those of transformers' `generate`, however it is scheduled."""

from collections.abc import Iterator

import attrs
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.model.running import Driver, greedy_tokens
from triolet.model.llama import LlamaModel, build_model
from triolet.model.source import ModelSource
from triolet.model.tokenizer import ChatTokenizer
from triolet.model.weights import read_spec, read_weights

COUNT = 10
QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Write a haiku about rain.",
    "How many legs does a spider have?",
    "Translate 'good morning' into Spanish.",
    "Is 97 a prime number? Explain briefly.",
    "Give me a recipe with eggs and spinach, step by step, for two people who are in a hurry.",
    "Why is the sky blue?",
    "List the planets of the solar system in order.",
    "什么是机器学习?",
    "Who wrote Hamlet?",
    "Summarise: The quick brown fox jumps over the lazy dog. " * 6,
)
TEXTS = (
    "Once upon a time",
    "def fibonacci(n):\n",
    "The three laws of motion are",
    "1, 1, 2, 3, 5, 8,",
    '{"name": "Ada", "age":',
    "Dear Sir or Madam,\n\n",
    "🙂",
    "It was the best of times, it was the worst of times, it was the age of wisdom, " * 4,
)


@pytest.fixture(scope="module")
def built(builtin_source: ModelSource) -> tuple[LlamaModel, LlamaForCausalLM]:
    """The same weights in our model and in transformers'."""
    spec = read_spec(builtin_source)
    weights = {name: tensor.float() for name, tensor in read_weights(builtin_source, spec)}
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.rms_norm_eps,
        max_position_embeddings=spec.max_position_embeddings,
        tie_word_embeddings=spec.tied_embeddings,
        rope_theta=spec.rope_theta,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("meta"):
        reference = LlamaForCausalLM(config).eval()
    reference.load_state_dict(weights, strict=False, assign=True)
    reference.tie_weights()
    reference.model.rotary_emb = type(reference.model.rotary_emb)(config)
    return build_model(spec, weights.items(), dtype=torch.float32), reference


@attrs.frozen
class Answers:
    """Prompts, with what transformers says to each."""

    items: tuple[tuple[list[int], list[int]], ...]

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        return iter(self.items)


@pytest.fixture(scope="module")
def answers(built: tuple[LlamaModel, LlamaForCausalLM], builtin_tokenizer: ChatTokenizer) -> Answers:
    """Twenty prompts: chats, plain text, code, other scripts, short and long."""
    chats = [builtin_tokenizer.render([{"role": "user", "content": question}]) for question in QUESTIONS]
    prompts = [builtin_tokenizer.encode(text, add_special_tokens=False) for text in (*chats, *TEXTS)]
    return Answers(tuple((prompt, greedy_tokens(built[1], prompt, COUNT)) for prompt in prompts))


@pytest.fixture
def driver(built: tuple[LlamaModel, LlamaForCausalLM]) -> Driver:
    return Driver(built[0], num_blocks=512, block_size=16)


def test_each_alone(driver: Driver, answers: Answers) -> None:
    """One after the other."""
    for prompt, answer in answers:
        name = driver.join(prompt)
        assert driver.generate(name, COUNT) == answer
        driver.leave(name)


def test_all_in_one_batch_in_chunks_of_16(driver: Driver, answers: Answers) -> None:
    """Prompts are cut while others decode, and join at different steps."""
    names = []
    for prompt, _ in answers:
        names.append(driver.join(prompt))
        driver.step(limit=16)
    for name, (_, answer) in zip(names, answers, strict=True):
        assert driver.generate(name, COUNT, limit=16) == answer


def test_after_prefix_hits_and_preemptions(driver: Driver, answers: Answers) -> None:
    """Each starts on another's blocks where it has two, and all are thrown out and taken back midway."""
    first = {driver.join(prompt): prompt for prompt, _ in answers}
    driver.step()
    shared = {name: driver.running[name].table[: min(2, (len(prompt) - 1) // 16)] for name, prompt in first.items()}
    second = {driver.join(first[name], computed=16 * len(t), table=t): t for name, t in shared.items()}
    for name in first:
        driver.leave(name)
    for _ in range(4):
        driver.step()
    back = []
    for name, table in second.items():
        run = driver.leave(name)
        back.append(driver.join(run.tokens, num_prompt=run.num_prompt, computed=16 * len(table), table=table))
    for name, (_, answer) in zip(back, answers, strict=True):
        assert driver.generate(name, COUNT) == answer
