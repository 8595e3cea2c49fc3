"""Steps on the device: whatever is padded, replayed, launched ahead, moved or left behind, each request's tokens are
those that it gets alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.device_steps import DeviceDriver, FakeGraphs
from tests.model.running import GREEDY, Driver, greedy_tokens, our_model, reference_model
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.pooling import Pooling, numbers_of
from triolet.model.device_step.graphs import NoGraphs
from triolet.model.llama import LlamaModel, build_model
from triolet.model.source import ModelSource
from triolet.model.weights import read_spec, read_weights

COUNT = 20


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    """A model of grouped heads; its answers below are those of transformers."""
    return our_model(reference_model("llama"), pack=False)


def prompts(*lengths: int) -> list[list[int]]:
    return [[(i * 17 + j * 31 + i * j) % 131 for j in range(length)] for i, length in enumerate(lengths)]


@pytest.fixture(scope="module")
def answers() -> dict[tuple[int, ...], list[int]]:
    """What transformers' `generate` says to each prompt."""
    reference = reference_model("llama")
    return {tuple(p): greedy_tokens(reference, p, COUNT) for p in prompts(1, 7, 16, 33, 50, 24)}


def test_two_steps_under_way(model: LlamaModel, answers: dict[tuple[int, ...], list[int]]) -> None:
    """Each step is launched before the tokens of the one before are known; prompts and decodes mix."""
    driver = DeviceDriver(model, num_blocks=256)
    names = []
    for prompt in answers:
        names.append(driver.join(prompt))
        driver.launch()
    for name, answer in zip(names, answers.values(), strict=True):
        assert driver.generate(name, COUNT) == answer
    assert isinstance(driver.graphs, FakeGraphs)
    assert driver.graphs.num_replays > 0


@pytest.mark.parametrize("pieces", [True, False])
@pytest.mark.parametrize("limit", [16, 10**6])
def test_recorded_and_eager_steps_agree(
    model: LlamaModel, answers: dict[tuple[int, ...], list[int]], limit: int, pieces: bool
) -> None:
    """Prompts whole and in chunks, through recorded pieces and without them, with and without graphs."""
    for graphs in (FakeGraphs(), NoGraphs()):
        driver = DeviceDriver(model, num_blocks=256, graphs=graphs, pieces=pieces)
        names = [driver.join(prompt) for prompt in answers]
        for name, answer in zip(names, answers.values(), strict=True):
            assert driver.generate(name, COUNT, limit=limit) == answer


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_schedule_independence(
    model: LlamaModel, answers: dict[tuple[int, ...], list[int]], data: st.DataObject
) -> None:
    """Law S8: joining, chunking, resting, preempting, forking with a copy and leaving in any order, one or two steps
    under way, never changes a token."""
    driver = DeviceDriver(model, num_blocks=1024, max_num_tokens=48, depth=data.draw(st.integers(1, 2)))
    waiting = data.draw(st.permutations([list(p) for p in answers]))
    for _ in range(data.draw(st.integers(5, 25))):
        if waiting and len(driver.running) < 8 and data.draw(st.booleans()):
            driver.join(waiting.pop())
        if not driver.running:
            continue
        act = data.draw(st.sampled_from(["step", "step", "chunks", "preempt", "fork", "leave"]))
        chunks: dict[int, int] = {}
        copies: dict[str, tuple[int, ...]] = {}
        if act == "preempt":
            driver.land_all()  # as the scheduler: nobody is preempted while a step is under way
            run = driver.leave(data.draw(st.sampled_from(sorted(driver.running))))
            kept = data.draw(st.integers(0, min(run.computed // 4, (len(run.tokens) - 1) // 4)))
            driver.join(run.tokens, num_prompt=run.num_prompt, computed=kept * 4, table=run.table[:kept])
        elif act == "leave" and len(driver.running) > 1:
            driver.leave(data.draw(st.sampled_from(sorted(driver.running))))
        elif act == "fork" and len(driver.running) < 8:
            copies = fork(driver, data.draw(st.sampled_from(sorted(driver.running))))
        elif act == "chunks":
            chunks = {
                name: data.draw(st.integers(0, len(run.tokens) - run.computed)) for name, run in driver.running.items()
            }
        driver.launch(chunks, **copies)
    driver.land_all()
    for run in driver.running.values():
        out = run.tokens[run.num_prompt :][:COUNT]
        assert out == answers[tuple(run.tokens[: run.num_prompt])][: len(out)]


def fork(driver: DeviceDriver, name: int) -> dict[str, tuple[int, ...]]:
    """A second sequence goes on from where this one is, in a copy of its partial block."""
    driver.land_all()
    run = driver.running[name]
    if not 0 < run.computed < len(run.tokens) or run.computed % 4 == 0:
        return {}
    target, partial = driver.free.pop(), run.table[run.computed // 4]
    table = [*run.table[: run.computed // 4], target]
    driver.join(run.tokens, num_prompt=run.num_prompt, computed=run.computed, table=table)
    return {"copy_sources": (partial,), "copy_targets": (target,)}


def test_a_copied_block_takes_its_content_along(model: LlamaModel, answers: dict[tuple[int, ...], list[int]]) -> None:
    """Copy-on-write: a fork goes on in its own copy of the partial block, and both get the same tokens."""
    driver = DeviceDriver(model)
    prompt = list(answers)[3]
    first = driver.join(prompt)
    driver.generate(first, 6)
    copies = fork(driver, first)
    assert copies
    driver.launch(**copies)
    for name in driver.running:
        assert driver.generate(name, COUNT) == answers[prompt]


def test_resting_sequences_keep_their_place(model: LlamaModel, answers: dict[tuple[int, ...], list[int]]) -> None:
    """A chunk of 0 computes and samples nothing, in a step of decodes and in a mixed one."""
    driver = DeviceDriver(model)
    (a, first), (b, second) = [(driver.join(p), answers[tuple(p)]) for p in list(answers)[2:4]]
    for chunks in ({}, {a: 0}, {b: 0}, {a: 0, b: 0}, {a: 0}):
        driver.launch(chunks)
    c = driver.join(list(answers)[1])
    driver.launch({b: 0})
    assert driver.generate(a, COUNT) == first
    assert driver.generate(b, COUNT) == second
    assert driver.generate(c, COUNT) == list(answers.values())[1]


def test_the_built_in_model_answers_as_on_the_host(builtin_source: ModelSource) -> None:
    """Real weights, in float32: greedy and seeded tokens, three sequences together, are those of the runner on the
    host."""
    spec = read_spec(builtin_source)
    model = build_model(spec, read_weights(builtin_source, spec), dtype=torch.float32, max_model_len=128, pack=False)
    texts = [[1, 4093, 198, 1780, 314, 260, 3575, 282], [504, 3575, 282], [260] * 20]
    params = [GREEDY, SamplingParams(temperature=0.8, top_p=0.9), GREEDY]
    host = Driver(model, block_size=16)
    device = DeviceDriver(model, block_size=16, max_model_len=64, max_num_seqs=4, max_num_tokens=32)
    names = [device.join(text, sampling=sampling, seed=11) for text, sampling in zip(texts, params, strict=True)]
    for name, text, sampling in zip(names, texts, params, strict=True):
        alone = host.join(text, sampling=sampling, seed=11)
        assert device.generate(name, 12) == host.generate(alone, 12)
        host.leave(alone)


@pytest.mark.parametrize("leaving", [(4, 2), (1, 2, 3, 4), (5, 4, 2), (2, 5, 1)])
def test_several_leave_at_once(
    model: LlamaModel, answers: dict[tuple[int, ...], list[int]], leaving: tuple[int, ...]
) -> None:
    """The rows behind them move, some of them twice, with the tokens that the device alone knows."""
    driver = DeviceDriver(model, num_blocks=256)
    names = [driver.join(prompt) for prompt in answers]
    driver.launch()
    driver.launch()
    for name in leaving:
        driver.leave(name)
    driver.launch()
    for name, answer in zip(names, answers.values(), strict=True):
        if name not in leaving:
            assert driver.generate(name, COUNT) == answer


def test_sampled_tokens_are_those_of_the_host(model: LlamaModel) -> None:
    """Every filter alone and all together: the device draws what `sampling.py` draws, at any load."""
    asked = [
        SamplingParams(temperature=0.9),
        SamplingParams(temperature=1.3, top_k=5),
        SamplingParams(temperature=0.8, top_p=0.7),
        SamplingParams(temperature=1.1, min_p=0.1),
        SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=0),
    ]
    host, device = Driver(model, num_blocks=256), DeviceDriver(model, num_blocks=256)
    for sampling, prompt in zip(asked, prompts(3, 9, 20, 5, 12, 30), strict=True):
        alone = host.join(prompt, sampling=sampling, seed=-5)
        expected = host.generate(alone, COUNT)
        host.leave(alone)
        name = device.join(prompt, sampling=sampling, seed=-5)  # the earlier ones go on beside it
        assert device.generate(name, COUNT) == expected


def test_careful_and_plain_steps_alternate(model: LlamaModel) -> None:
    """A sequence with penalties and log-probabilities comes and goes; its tokens and the others' are the host's."""
    prompt, *others = prompts(20, 7, 30)
    sampling = SamplingParams(temperature=0.9, frequency_penalty=0.5, logprobs=2)
    host = Driver(model, num_blocks=256)
    expected = [host.generate(host.join(p), COUNT) for p in others]
    careful = host.generate(host.join(prompt, sampling=sampling, seed=3), COUNT)
    device = DeviceDriver(model, num_blocks=256)
    names = [device.join(p) for p in others]
    device.launch()
    device.launch()
    name = device.join(prompt, sampling=sampling, seed=3)
    assert device.generate(name, COUNT) == careful
    device.leave(name)
    for other, tokens in zip(names, expected, strict=True):
        assert device.generate(other, COUNT) == tokens


def test_end_tokens_wait_for_min_tokens(model: LlamaModel, answers: dict[tuple[int, ...], list[int]]) -> None:
    """While they may not come the steps are careful, and plain from then on."""
    prompt, answer = next(item for item in answers.items() if len(set(item[1][:8])) > 4)
    ends = (answer[4], answer[0])
    host, device = Driver(model), DeviceDriver(model)
    for driver in (host, device):
        name = driver.join(prompt, sampling=SamplingParams(temperature=0, min_tokens=7), end_token_ids=ends)
        driver.generate(name, COUNT)
    assert device.running[1].tokens == host.running[1].tokens
    assert not set(device.running[1].tokens[len(prompt) : len(prompt) + 7]) & set(ends)


def test_not_a_number_ends_one_sequence_alone(model: LlamaModel, answers: dict[tuple[int, ...], list[int]]) -> None:
    """A sequence whose cache holds NaN is reported when its step lands; the one beside it is not, nor the next step."""
    prompt, other = [list(p) for p in list(answers)[3:5]]
    driver = DeviceDriver(model)
    sick, well = driver.join(prompt), driver.join(other)
    driver.launch()
    driver.land_all()
    driver.kv.tensors[0][driver.running[sick].table[0]] = float("nan")
    driver.launch()
    driver.launch()
    results = [driver.land(), driver.land()]
    assert [result.sequences for result in results] == [(well,), (well,)]
    assert results[0].failed == ((sick, "the model's logits are not numbers"),)
    driver.leave(sick)
    assert driver.generate(well, COUNT) == answers[tuple(other)]


def test_an_unchanged_decode_uploads_nothing(model: LlamaModel) -> None:
    """Once the batch is there, a step is replays alone, but for a table entry at a block's end."""
    driver = DeviceDriver(model)
    driver.join(prompts(9)[0])
    driver.launch()
    driver.launch()
    before = driver.transfers.num_uploads
    for _ in range(2):
        driver.launch()
    assert driver.transfers.num_uploads == before
    driver.launch()  # the thirteenth token begins a block
    assert driver.transfers.num_uploads == before + 1


def test_capturing_leaves_no_trace(model: LlamaModel) -> None:
    """What is recorded at the start writes into no block that anybody may own, and no row."""
    driver = DeviceDriver(model)
    buffers = driver.executor.buffers
    for tensor in driver.kv.tensors:
        assert tensor[: driver.kv.num_blocks].isnan().all()
    for tensor in (buffers.tokens, buffers.computed, buffers.active):
        assert not tensor.any()


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_every_family_runs(family: str) -> None:
    """Windows, biases and norms of heads: the tokens are those of the runner on the host."""
    fields = {"sliding_window": 9} if family == "mistral" else {}
    model = our_model(reference_model(family, **fields), pack=False)
    host, device = Driver(model), DeviceDriver(model)
    for prompt in prompts(5, 21):
        expected = host.generate(host.join(prompt), COUNT)
        assert device.generate(device.join(prompt), COUNT, limit=8) == expected


def test_an_fp8_cache_keeps_what_it_can(model: LlamaModel) -> None:
    """K and V in eight bits: the first token of each prompt, and most of the others, are as before."""
    host, device = Driver(model, num_blocks=256), DeviceDriver(model, num_blocks=256, kv_dtype=torch.float8_e4m3fn)
    equal = []
    for prompt in prompts(9, 18, 33):
        expected = host.generate(host.join(prompt), 6)
        equal += [a == b for a, b in zip(device.generate(device.join(prompt), 6), expected, strict=True)]
    assert sum(equal) > len(equal) / 2


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_vectors_are_those_of_the_host(model: LlamaModel, kind: Any) -> None:
    """A sequence that becomes a vector, in chunks and beside decodes; one of a single token as well."""
    host, device = Driver(model), DeviceDriver(model)
    device.join(prompts(6)[0])
    device.step()
    for prompt in prompts(1, 13):
        vectors = []
        for driver in (host, device):
            name = driver.join(prompt, pooling=Pooling(kind=kind))
            found: dict[Any, bytes] = {}
            while name not in found:
                found = dict(driver.step(limit=5).vectors)
            driver.leave(name)
            vectors.append(numbers_of(found[name]))
        assert vectors[1] == pytest.approx(vectors[0], abs=1e-5)


def test_the_runner_refuses_what_it_cannot_keep_apart(model: LlamaModel) -> None:
    """A third step under way, a step out of order and more sequences than there are rows are our own bugs."""
    driver = DeviceDriver(model, max_num_seqs=2)
    runner = driver.device_runner
    driver.join([1, 2])
    driver.launch()
    driver.launch()
    plan, _ = driver.plan({})
    with pytest.raises(AssertionError, match="step 3 comes while 2 are under way"):
        runner.launch(plan)
    driver.land_all()
    runner.execute(plan)
    with pytest.raises(AssertionError, match="step 3 comes after step 3"):
        runner.launch(plan)
    small = DeviceDriver(model, max_num_seqs=2)
    for _ in range(3):
        small.join([1, 2])
    with pytest.raises(AssertionError, match="the batch has 3 sequences, there is room for 2"):
        small.launch()


def test_a_reset_forgets_the_steps_under_way(model: LlamaModel, answers: dict[tuple[int, ...], list[int]]) -> None:
    """After it the first plan may have any number, and a sequence that joins its blocks finds them as they were."""
    driver = DeviceDriver(model)
    prompt = list(answers)[2]
    name = driver.join(prompt)
    driver.launch()
    driver.land_all()
    run = driver.running[name]
    known = list(run.tokens)
    driver.launch()
    driver.device_runner.reset()
    driver._landing.clear()
    assert driver.device_runner.num_under_way == 0
    driver.steps = 40
    driver.running.pop(name)
    back = driver.join(known, num_prompt=len(prompt), computed=len(prompt), table=run.table)
    assert driver.generate(back, COUNT) == answers[prompt]


def test_the_gpu_s_kernels_by_their_references(model: LlamaModel, answers: dict[tuple[int, ...], list[int]]) -> None:
    """The launchers of the Triton kernels, which compute their references here: the same tokens, with a copy and a
    draw."""
    driver = DeviceDriver(model, num_blocks=256, kernels="triton", graphs=NoGraphs(), pieces=False)
    names = [driver.join(prompt) for prompt in answers]
    for name, answer in zip(names, answers.values(), strict=True):
        assert driver.generate(name, COUNT, limit=16) == answer
    driver.leave(names[0])
    prompt = list(answers)[3]
    first = driver.join(prompt)
    driver.generate(first, 6)
    driver.launch(**fork(driver, first))
    for name in list(driver.running)[-2:]:
        assert driver.generate(name, COUNT) == answers[prompt]
    sampling = SamplingParams(temperature=0.9, top_k=20, top_p=0.9)
    host = Driver(model)
    expected = host.generate(host.join([1, 2, 3], sampling=sampling, seed=4), COUNT)
    driver.leave(first)
    assert driver.generate(driver.join([1, 2, 3], sampling=sampling, seed=4), COUNT) == expected
