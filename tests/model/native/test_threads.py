"""How many threads a step gets: all that there are, unless fewer were clearly quicker."""

import pytest

from triolet.model.native.threads import LARGE, PROBE_AFTER, ThreadChooser


def run(chooser: ThreadChooser, steps: int, seconds: dict[int, float], num_tokens: int = 1) -> list[int]:
    """The choices of so many steps, each taking what its number of threads takes."""
    chosen = []
    for _ in range(steps):
        threads = chooser.choose(num_tokens)
        chooser.record(num_tokens, threads, seconds[threads])
        chosen.append(threads)
    return chosen


def test_all_threads_at_first() -> None:
    """As many as there are cores; one core is always one thread."""
    assert ThreadChooser(2).choose(1) == 2
    assert set(run(ThreadChooser(1), 100, {1: 1.0})) == {1}
    assert ThreadChooser(0).choose(5) == 1


def test_fewer_threads_are_tried_and_kept_where_they_are_quicker() -> None:
    """A foreign thread holds a core: one thread takes a third of the time."""
    chosen = run(ThreadChooser(2), 100, {1: 1.0, 2: 3.0})
    assert chosen[:PROBE_AFTER] == [2] * PROBE_AFTER
    assert set(chosen[PROBE_AFTER : 2 * PROBE_AFTER]) == {1}


def test_a_choice_that_is_right_is_questioned_ever_less() -> None:
    """Trying costs time: of a thousand steps few are tries."""
    assert run(ThreadChooser(2), 1000, {1: 1.6, 2: 1.0}).count(1) <= 6


def test_a_little_quicker_changes_nothing() -> None:
    """Hysteresis: timings are noisy."""
    chosen = run(ThreadChooser(2), 300, {1: 0.9, 2: 1.0})
    assert chosen[-PROBE_AFTER:].count(2) >= PROBE_AFTER - 1


def test_the_cores_are_taken_back() -> None:
    """When the foreign thread has gone, two threads are tried again and kept."""
    chooser = ThreadChooser(2)
    run(chooser, 60, {1: 1.0, 2: 3.0})
    assert run(chooser, 600, {1: 1.0, 2: 0.6})[-1] == 2


def test_one_stalled_step_is_no_trend() -> None:
    """A step that took a hundred times as long does not make the other number look good for long."""
    chooser = ThreadChooser(2)
    run(chooser, PROBE_AFTER - 1, {1: 1.6, 2: 1.0})
    chooser.record(1, chooser.choose(1), 100.0)
    assert 2 in run(chooser, 3 * PROBE_AFTER, {1: 1.6, 2: 1.0})[-PROBE_AFTER:]


def test_a_large_step_gets_all_threads_and_is_never_tried_with_fewer() -> None:
    """With one thread of two a chunk of a prompt would take twice its time, and every stream would stand still."""
    assert set(run(ThreadChooser(2), 1000, {1: 1.0, 2: 3.0}, LARGE)) == {2}
    assert 1 in run(ThreadChooser(2), 1000, {1: 1.0, 2: 3.0}, LARGE - 1)


@pytest.mark.parametrize("num_tokens", [64, 2048])
def test_sizes_of_steps_are_judged_by_themselves(num_tokens: int) -> None:
    """What is right for one token says nothing of a prompt."""
    chooser = ThreadChooser(2)
    run(chooser, 60, {1: 1.0, 2: 3.0})
    assert chooser.choose(1) == 1
    assert chooser.choose(num_tokens) == 2
