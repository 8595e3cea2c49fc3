"""The runner carries plans out as they are written: however a sequence is scheduled, its tokens are the same."""

from collections.abc import Sequence

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.running import Driver, greedy_tokens, our_model, reference_model
from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import JoinedSequence, StepPlan
from triolet.model import row_kernels
from triolet.model.attention.torch_backend import TorchAttention
from triolet.model.forward import TorchForward
from triolet.model.kv import KVTensors
from triolet.model.llama import LlamaModel
from triolet.model.native.library import load_library
from triolet.model.native.sampling import NativeSampler
from triolet.model.runner import ModelRunner

COUNT = 20


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    """A model of grouped heads; its answers below are those of transformers."""
    return our_model(reference_model("llama"))


def prompts(*lengths: int) -> list[list[int]]:
    return [[(i * 17 + j * 31 + i * j) % 131 for j in range(length)] for i, length in enumerate(lengths)]


@pytest.fixture(scope="module")
def answers() -> dict[tuple[int, ...], list[int]]:
    """What transformers' `generate` says to each prompt."""
    reference = reference_model("llama")
    return {tuple(p): greedy_tokens(reference, p, COUNT) for p in prompts(1, 7, 16, 33, 50, 24)}


@pytest.fixture
def driver(model: LlamaModel) -> Driver:
    return Driver(model, num_blocks=256)


def test_alone(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """One sequence after the other, each alone in the batch, prompt in one step."""
    for prompt, answer in answers.items():
        name = driver.join(prompt)
        assert driver.generate(name, COUNT) == answer
        driver.leave(name)


def test_a_torch_model_is_sampled_by_torch(model: LlamaModel) -> None:
    """Also in a thread that had a native model before: worker threads are used again."""
    row_kernels.use(NativeSampler(load_library(), num_threads=1))
    Driver(model, num_blocks=4)
    assert row_kernels.in_use() is None


def test_together(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """All join one step after the other, so that prompts and decodes mix."""
    names = []
    for prompt in answers:
        names.append(driver.join(prompt))
        driver.step()
    for name, answer in zip(names, answers.values(), strict=True):
        assert driver.generate(name, COUNT) == answer


def test_in_chunks_of_16(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """Prompts cut into chunks, while others decode."""
    names = [driver.join(prompt) for prompt in answers]
    for name, answer in zip(names, answers.values(), strict=True):
        assert driver.generate(name, COUNT, limit=16) == answer


def test_after_a_prefix_hit(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """A second sequence with the same beginning starts from the first one's blocks."""
    prompt = list(max(answers, key=len))
    first = driver.join(prompt)
    driver.generate(first, 3)
    shared = driver.running[first].table[:8]
    second = driver.join(prompt, computed=8 * driver.kv.block_size, table=shared)
    assert driver.generate(second, COUNT) == answers[tuple(prompt)]
    assert driver.generate(first, COUNT) == answers[tuple(prompt)]


@pytest.mark.parametrize("kept", [0, 2, 5])
def test_after_a_preemption(driver: Driver, answers: dict[tuple[int, ...], list[int]], kept: int) -> None:
    """It leaves with some tokens out and comes back with them as known tokens, some blocks still valid."""
    prompt = list(max(answers, key=len))
    name, other = driver.join(prompt), driver.join(prompt[:5])
    driver.generate(name, 9)
    run = driver.leave(name)
    driver.step()
    back = driver.join(
        run.tokens, num_prompt=run.num_prompt, computed=kept * driver.kv.block_size, table=run.table[:kept]
    )
    assert driver.generate(back, COUNT, limit=16) == answers[tuple(prompt)]
    assert len(driver.running[other].tokens) > 5 + COUNT - 9


def test_resting_sequences_keep_their_place(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """A chunk of 0 computes and samples nothing; afterwards the sequence goes on as if nothing had been."""
    (a, first), (b, second) = [(driver.join(p), answers[tuple(p)]) for p in list(answers)[2:4]]
    driver.step({b: 0})
    driver.step({b: 9})
    result = driver.step({a: 0, b: 4})
    assert (result.sequences, result.token_ids) == ((), ())
    assert driver.step({a: 0, b: 0}).sequences == ()
    assert driver.generate(a, COUNT) == first
    assert driver.generate(b, COUNT) == second


def test_a_copied_block_takes_its_content_along(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """Copy-on-write: a fork goes on in its own copy of the partial block, and both get the same tokens."""
    prompt = list(answers)[3]
    first = driver.join(prompt)
    driver.generate(first, 6)
    run = driver.running[first]
    target = driver.free.pop()
    partial = run.table[run.computed // 4]
    table = [*run.table[: run.computed // 4], target]
    fork = driver.join(run.tokens, num_prompt=run.num_prompt, computed=run.computed, table=table)
    driver.step(copy_sources=(partial,), copy_targets=(target,))
    assert driver.generate(first, COUNT) == answers[prompt]
    assert driver.generate(fork, COUNT) == answers[prompt]


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_schedule_independence(
    model: LlamaModel, answers: dict[tuple[int, ...], list[int]], data: st.DataObject
) -> None:
    """Law S8: joining, chunking, resting, preempting and leaving in any order never changes a token."""
    driver = Driver(model, num_blocks=1024)
    waiting = data.draw(st.permutations([list(p) for p in answers]))
    for _ in range(data.draw(st.integers(5, 30))):
        if waiting and data.draw(st.booleans()):
            driver.join(waiting.pop())
        if not driver.running:
            continue
        act = data.draw(st.sampled_from(["step", "step", "chunks", "preempt"]))
        if act == "preempt":
            run = driver.leave(data.draw(st.sampled_from(sorted(driver.running))))
            kept = data.draw(st.integers(0, min(run.computed // 4, (len(run.tokens) - 1) // 4)))
            driver.join(run.tokens, num_prompt=run.num_prompt, computed=kept * 4, table=run.table[:kept])
        chunks = {}
        if act == "chunks":
            for name, run in driver.running.items():
                chunks[name] = data.draw(st.integers(0, len(run.tokens) - run.computed))
        driver.step(chunks)
        for run in driver.running.values():
            out = run.tokens[run.num_prompt :][:COUNT]
            assert out == answers[tuple(run.tokens[: run.num_prompt])][: len(out)]


def test_sampled_tokens_repeat_at_any_load(driver: Driver) -> None:
    """A seeded request draws the same tokens alone, among others, and after a preemption."""
    sampling = SamplingParams(temperature=0.9, top_p=0.95, top_k=40)
    prompt, *others = prompts(20, 7, 30)
    alone = driver.generate(driver.join(prompt, sampling=sampling, seed=-7), COUNT)
    for other in others:
        driver.join(other, sampling=SamplingParams(temperature=1.5), seed=3)
    driver.step()
    again = driver.join(prompt, sampling=sampling, seed=-7)
    driver.generate(again, 8)
    run = driver.leave(again)
    back = driver.join(run.tokens, num_prompt=20, sampling=sampling, seed=-7)
    assert driver.generate(back, COUNT, limit=5) == alone
    assert driver.generate(driver.join(prompt, sampling=sampling, seed=8), COUNT) != alone


def test_end_tokens_wait_for_min_tokens(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """A token that would end the answer is not sampled before `min_tokens` are out, also across a preemption."""
    prompt, answer = next(item for item in answers.items() if len(set(item[1][:8])) > 4)
    ends = (answer[4], answer[0])
    sampling = SamplingParams(temperature=0, min_tokens=7)
    name = driver.join(prompt, sampling=sampling, end_token_ids=ends)
    driver.generate(name, 3)
    run = driver.leave(name)
    back = driver.join(run.tokens, num_prompt=len(prompt), sampling=sampling, end_token_ids=ends)
    assert not set(driver.generate(back, 7)) & set(ends)
    free = driver.join(prompt, end_token_ids=ends)
    assert driver.generate(free, COUNT) == answer


def test_not_a_number_ends_one_sequence_alone(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """A sequence whose cache holds NaN is reported; the one beside it, and the next owner of its blocks, are not."""
    prompt, other = [list(p) for p in list(answers)[3:5]]
    sick, well = driver.join(prompt), driver.join(other)
    driver.step()
    block = driver.running[sick].table[0]
    driver.kv.tensors[0][block] = float("nan")
    result = driver.step()
    assert result.failed == ((sick, "the model's logits are not numbers"),)
    assert result.sequences == (well,)
    driver.running[sick].tokens.append(0)
    assert driver.step().sequences == (well,), "a plan made before the failure was known is carried out"
    run = driver.leave(sick)
    driver.free += run.table
    heir = driver.join(prompt)
    assert driver.generate(well, COUNT) == answers[tuple(other)]
    assert driver.generate(heir, COUNT) == answers[tuple(prompt)]


def test_many_sequences_come_and_go(driver: Driver, answers: dict[tuple[int, ...], list[int]]) -> None:
    """The batch grows past its first size and shrinks again, and the rows that move keep their sequences."""
    prompt, answer = list(answers)[1], list(answers.values())[1]
    names = [driver.join(prompt) for _ in range(21)]
    driver.step()
    for name in names[::2]:
        driver.leave(name)
    names = names[1::2] + [driver.join(prompt) for _ in range(3)]
    for name in names:
        assert driver.generate(name, COUNT) == answer


def test_an_empty_plan_does_nothing(driver: Driver) -> None:
    """No sequences, no tokens: a result with the step's number."""
    result = driver.step()
    assert (result.step, result.sequences, result.token_ids, result.failed) == (1, (), (), ())


def test_the_result_says_how_long_the_device_took(driver: Driver) -> None:
    """Seconds of the step itself."""
    driver.join([1, 2, 3])
    assert driver.step().seconds > 0


def test_bfloat16_runs(answers: dict[tuple[int, ...], list[int]]) -> None:
    """The same driver in bfloat16: chunked and whole prompts agree in the first token or two logits were close."""
    driver = Driver(our_model(reference_model("llama"), dtype=torch.bfloat16))
    names = [driver.join(prompt) for prompt in answers]
    for name in names:
        driver.generate(name, 6, limit=16)
    right = [driver.running[n].tokens[len(p)] == a[0] for n, (p, a) in zip(names, answers.items(), strict=True)]
    assert sum(right) >= len(right) - 1


def test_an_unknown_attention_backend_is_refused(model: LlamaModel) -> None:
    """The registry's error, when the runner is made."""
    kv = KVTensors(model.spec, num_blocks=4, block_size=4, dtype=model.dtype)
    with pytest.raises(ConfigurationError, match="valid names are"):
        ModelRunner(model, kv=kv, attention_backend="none such")
    forward = ModelRunner(model, kv=kv, attention_backend="torch").forward
    assert isinstance(forward, TorchForward)
    assert isinstance(forward.attention, TorchAttention)


def test_steps_are_counted(model: LlamaModel) -> None:
    """A step that is lost or comes twice is a bug; the first one may have any number."""
    runner = Driver(model).runner
    runner.execute(StepPlan(step=7, num_tokens=0, num_sequences=0))
    for step in (7, 9):
        with pytest.raises(AssertionError, match=f"step {step} comes after step 7"):
            runner.execute(StepPlan(step=step, num_tokens=0, num_sequences=0))


def test_a_reset_forgets_the_batch_and_keeps_the_memory(model: LlamaModel) -> None:
    """After it a plan of any number finds an empty batch, and a sequence that joins its blocks as they were."""
    driver = Driver(model)
    joined = JoinedSequence(
        sequence=1,
        token_ids=tuple(prompts(7)[0]),
        num_prompt_tokens=7,
        num_computed=0,
        block_tables=((3, 5),),
        sampling=SamplingParams(temperature=0),
        seed=0,
    )
    plan = StepPlan(
        step=1, num_tokens=7, num_sequences=1, joined=(joined,), chunk_sequences=(joined.sequence,), chunk_lengths=(7,)
    )
    first = driver.runner.execute(plan)
    driver.runner.reset()
    again = attrs.evolve(joined, sequence=2, num_computed=6)
    result = driver.runner.execute(StepPlan(step=40, num_tokens=1, num_sequences=1, joined=(again,)))
    assert result.token_ids == first.token_ids


def several_groups(model: LlamaModel, groups: Sequence[int]) -> list[int]:
    """Tokens of one prompt where the layers are in several groups, each with blocks of its own from one pool."""
    kv = KVTensors(model.spec, num_blocks=60, block_size=4, dtype=model.dtype, layer_groups=groups)
    runner = ModelRunner(model, kv=kv)
    prompt = prompts(7)[0]
    tables = tuple(tuple(range(g, 60, kv.num_groups))[:10] for g in range(kv.num_groups))
    joined = JoinedSequence(
        sequence=1,
        token_ids=tuple(prompt),
        num_prompt_tokens=7,
        num_computed=0,
        block_tables=tables,
        sampling=SamplingParams(temperature=0),
        seed=0,
    )
    plan = StepPlan(step=1, num_tokens=7, num_sequences=1, joined=(joined,), chunk_sequences=(1,), chunk_lengths=(7,))
    tokens = list(runner.execute(plan).token_ids)
    for step in range(2, 12):
        tokens += runner.execute(StepPlan(step=step, num_tokens=1, num_sequences=1)).token_ids
    return tokens


def test_groups_share_tensors_without_meeting(model: LlamaModel) -> None:
    """With two groups of layers, and with three, the tokens are those of one group."""
    whole = several_groups(model, (0, 0, 0))
    assert several_groups(model, (0, 1, 0)) == whole
    assert several_groups(model, (2, 1, 0)) == whole
