"""The whole engine in simulation: storms, planted faults, and a cancellation at every checkpoint (see simulation.py).

In every run: each client gets the tokens of its solo run or the beginning of them (S8) and one terminal event (S7), and
at the end nobody runs or waits and every block is free or cached (K11). A failure prints the scenario with its seed:
`run(Scenario(...))` replays it, to the byte.
"""

import logging
from collections.abc import Iterator

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .simulation import Scenario, run


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Planted faults are logged, each with a traceback: thousands of lines that say nothing new."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


STORM_SIZES = {"nightly": 100_000, "ci": 2_000}


def storm_size() -> int:
    """Requests in the storm: many in a `nightly` run, few in a `dev` one."""
    return STORM_SIZES.get(str(settings.get_current_profile_name()), 500)


@given(
    seed=st.integers(0, 2**32),
    cancel_rate=st.sampled_from([0.0, 0.5, 0.9]),
    arrivals_per_s=st.sampled_from([0.5, 2.0, 20.0]),
    depth=st.sampled_from([1, 2]),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
    num_blocks=st.sampled_from([30, 48, 200]),
    decoder_fails_rate=st.sampled_from([0.0, 0.2]),
    tokenizer_fails_rate=st.sampled_from([0.0, 0.2]),
    hasty_rate=st.sampled_from([0.0, 0.3]),
    superseding_rate=st.sampled_from([0.0, 0.5]),
)
def test_s7_s8_k11_any_load_ends_well(**drawn: object) -> None:
    """S7, S8, K11: arrivals, cancellations, slow readers, deadlines, short patience with the queue, newer requests in
    the place of older ones, broken decoders and prompts that break the tokenizer, in any mixture."""
    run(Scenario(num_requests=25, max_num_queued_reqs=16, **drawn))  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 2**32),
    cancel_rate=st.sampled_from([0.0, 0.5]),
    arrivals_per_s=st.sampled_from([0.5, 2.0, 20.0]),
    depth=st.sampled_from([1, 2]),
    num_blocks=st.sampled_from([30, 200]),
    device_faults=st.sampled_from([(), ((20, "lost"),), ((15, "raises"), (30, "memory"))]),
)
def test_s7_s8_k11_any_load_ends_well_while_settings_change(**drawn: object) -> None:
    """S7, S8, K11: slots, budget, queue and policy change, the engine is paused and goes on, its prefix cache is
    emptied where that can be done, at any moment of any load, faults of the device among it."""
    run(Scenario(num_requests=25, max_num_queued_reqs=16, settings_change=True, **drawn))  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 2])
def test_s7_s8_k11_a_storm_of_cancellations_leaves_nothing(depth: int) -> None:
    """Half of the requests are cancelled, in every state; the others get their text; nothing is left."""
    outcome = run(Scenario(seed=depth, num_requests=storm_size(), depth=depth, arrivals_per_s=1.5, num_blocks=40))
    print(outcome.tally, f"steps={outcome.num_steps} preemptions={outcome.num_preemptions}")
    assert outcome.tally.complete > 0.3 * outcome.tally.total
    assert outcome.tally.cut_off > 0.2 * outcome.tally.total
    assert outcome.num_preemptions > 0


def test_the_same_seed_gives_the_same_trace() -> None:
    """Byte for byte; another seed gives another."""
    scenario = Scenario(seed=7, num_requests=150, arrivals_per_s=3.0)
    trace = run(scenario).trace
    assert run(scenario).trace == trace
    assert run(attrs.evolve(scenario, seed=8)).trace != trace


@pytest.mark.parametrize("depth", [1, 2])
def test_a_client_may_be_cancelled_at_any_checkpoint_of_its_life(depth: int) -> None:
    """From entering the scope to leaving it, one run for each checkpoint: nothing is left, nobody else is touched."""
    scenario = Scenario(
        seed=3, num_requests=4, cancel_rate=0.0, depth=depth, arrivals_per_s=100.0, num_blocks=30, cancel_first_at=0
    )
    num_checkpoints = 0
    while run(attrs.evolve(scenario, cancel_first_at=num_checkpoints)).first_was_cancelled:
        num_checkpoints += 1
    assert num_checkpoints > 5


@pytest.mark.parametrize("depth", [1, 2])
def test_s7_the_device_may_fail_at_any_step(depth: int) -> None:
    """Every client that is there hears of it once, and the engine ends with the reason."""
    scenario = Scenario(seed=5, num_requests=8, cancel_rate=0.2, depth=depth, arrivals_per_s=5.0)
    num_steps = run(scenario).num_steps
    assert num_steps > 20
    for step in range(1, num_steps):
        outcome = run(attrs.evolve(scenario, device_fails_at=step))
        assert outcome.num_steps <= num_steps


def test_a_broken_decoder_ends_its_own_request() -> None:
    """One request in five cannot be decoded: each of these fails, each other one is answered."""
    outcome = run(Scenario(seed=11, num_requests=200, cancel_rate=0.0, decoder_fails_rate=0.2, max_num_queued_reqs=500))
    assert outcome.tally.failed > 10
    assert outcome.tally.failed + outcome.tally.complete + outcome.tally.timed_out == 200


def test_a_prompt_that_breaks_the_tokenizer_ends_its_own_request() -> None:
    """One request in five: each of these fails before it is scheduled, each other one is answered."""
    scenario = Scenario(seed=12, num_requests=200, cancel_rate=0.0, tokenizer_fails_rate=0.2, max_num_queued_reqs=500)
    outcome = run(scenario)
    assert outcome.tally.failed > 10
    assert outcome.tally.failed + outcome.tally.complete + outcome.tally.timed_out == 200


def test_past_its_bound_the_queue_refuses_and_what_it_took_is_served() -> None:
    """A burst far over the bound: the refused are told at once, every accepted request is answered."""
    outcome = run(Scenario(seed=13, num_requests=300, cancel_rate=0.0, arrivals_per_s=1000.0, max_num_queued_reqs=20))
    assert outcome.tally.refused > 150
    assert outcome.tally.refused + outcome.tally.complete + outcome.tally.timed_out == 300


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fault", ["lost", "memory"])
def test_s7_s8_a_fault_at_any_step_that_is_the_devices_alone_is_noticed_by_nobody(fault: str, depth: int) -> None:
    """The device is lost, or out of memory, at one step of each run: every client still gets the tokens of its solo
    run."""
    scenario = Scenario(seed=17, num_requests=8, cancel_rate=0.2, depth=depth, arrivals_per_s=5.0)
    num_steps = run(scenario).num_steps
    for step in range(1, num_steps):
        outcome = run(attrs.evolve(scenario, device_faults=((step, fault),)))
        assert outcome.tally.failed == outcome.tally.dead == 0
        assert outcome.tally.total == 8


@pytest.mark.parametrize("depth", [1, 2])
def test_s7_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(depth: int) -> None:
    """One fault at any step: who was in it hears of it once, everybody else is answered."""
    scenario = Scenario(seed=19, num_requests=12, cancel_rate=0.0, depth=depth, arrivals_per_s=2.0)
    num_steps = run(scenario).num_steps
    for step in range(1, num_steps, 3):
        outcome = run(attrs.evolve(scenario, device_faults=((step, "raises"),)))
        assert 0 < outcome.tally.failed <= scenario.max_num_seqs + 1
        assert outcome.tally.failed + outcome.tally.complete + outcome.tally.timed_out == 12


def test_a_queue_with_haste_and_supersession_refuses_some_and_replaces_some() -> None:
    """Under overload, who must be admitted soon is told to come back, and who is superseded is told so."""
    outcome = run(
        Scenario(
            seed=23,
            num_requests=200,
            cancel_rate=0.0,
            arrivals_per_s=10.0,
            hasty_rate=0.5,
            superseding_rate=0.5,
            max_num_queued_reqs=500,
        )
    )
    assert outcome.tally.refused > 20
    assert outcome.tally.superseded > 20
    assert outcome.tally.complete > 20


@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from([1, 2]),
    num_blocks=st.sampled_from([30, 48]),
    faults=st.dictionaries(st.integers(1, 300), st.sampled_from(["lost", "raises", "memory"]), max_size=6),
)
def test_s7_s8_k11_faults_in_any_mixture_leave_nothing(
    seed: int, depth: int, num_blocks: int, faults: dict[int, str]
) -> None:
    """S7, S8, K11: faults between arrivals and cancellations. Losses that come too close may end the engine; then every
    client is told so."""
    outcome = run(
        Scenario(
            seed=seed,
            num_requests=20,
            depth=depth,
            num_blocks=num_blocks,
            arrivals_per_s=2.0,
            device_faults=tuple(faults.items()),
        )
    )
    assert outcome.tally.dead == 0 or list(faults.values()).count("lost") > 3
