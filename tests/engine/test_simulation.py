"""The scheduler under a load in made-up time: known times of small traces, and that nothing is lost of large ones."""

from triolet.engine.core.scheduler import SchedulerConfig
from triolet.engine.cost import StepShape
from triolet.engine.simulation import Arrival, Load, Outcome, Simulation, draw_trace

LIMITS = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)


def one_second(shape: StepShape) -> float:
    return 1.0


def simulate(trace: list[Arrival], *, num_blocks: int = 64, limits: SchedulerConfig = LIMITS) -> Outcome:
    return Simulation(limits, one_second, num_blocks=num_blocks, block_size=4).run(trace)


def test_one_request_takes_its_steps() -> None:
    """100 prompt tokens in two steps of 64, then a token a step: the first after two, the last after six."""
    outcome = simulate([Arrival(at=10.0, prompt_tokens=100, output_tokens=5)])
    assert (outcome.first_token_s, outcome.per_token_s, outcome.e2e_s) == ((2.0,), (1.0,), (6.0,))
    assert (outcome.seconds, outcome.steps, outcome.generated_tokens) == (16.0, 6, 5)
    assert (outcome.num_finished, outcome.preemptions, outcome.hit_rate) == (1, 0, 0.0)


def test_the_cost_sees_what_a_step_computes() -> None:
    """A prompt of ten tokens that attend to 1, 2, … 10 of them, then decodes that read one token more each."""
    seen: list[tuple[int, ...]] = []

    def cost(shape: StepShape) -> float:
        seen.append((shape.num_tokens, shape.num_sampled, shape.num_context, shape.num_pairs))
        return 1.0

    Simulation(LIMITS, cost, num_blocks=64, block_size=4).run([Arrival(at=0.0, prompt_tokens=10, output_tokens=3)])
    assert seen == [(10, 1, 10, 55), (1, 1, 11, 11), (1, 1, 12, 12)]


def test_a_shared_prefix_is_computed_once() -> None:
    """The second of two requests that begin alike finds whole blocks of it."""
    trace = [Arrival(at=at, prompt_tokens=40, output_tokens=2, prefix=0, prefix_tokens=32) for at in (0.0, 10.0)]
    assert simulate(trace).cached_tokens == 32


def test_a_cancelled_request_gives_way() -> None:
    """It ends at the next step boundary, and counts as cancelled."""
    trace = [Arrival(at=0.0, prompt_tokens=4, output_tokens=50, cancel_after=2.5)]
    outcome = simulate(trace)
    assert (outcome.num_finished, outcome.num_cancelled, outcome.generated_tokens) == (0, 1, 3)


def test_a_small_memory_preempts_and_everyone_ends() -> None:
    """Many sequences in few blocks."""
    load = Load(num_requests=40, requests_per_s=2.0, prompt_tokens=20, output_tokens=30)
    outcome = simulate(draw_trace(load, seed=1), num_blocks=30)
    assert outcome.num_finished == 40
    assert outcome.preemptions > 0
    assert outcome.most_kv_usage > 0.9
    assert outcome.most_waiting > 0


def test_the_same_seed_gives_the_same_answer() -> None:
    """And another one, another."""
    load = Load(
        num_requests=50, requests_per_s=1.0, prompt_tokens=30, output_tokens=10, prefix_tokens=16, cancel_share=0.3
    )
    first, again, other = (simulate(draw_trace(load, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert first.num_finished + first.num_cancelled == 50
    assert first.num_cancelled > 0
