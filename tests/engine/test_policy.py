"""The names of scheduling policies, and what each does with who waits."""

import pytest

from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.policy import FcfsPolicy, make_policy
from triolet.engine.core.request import Request, Sequence, new_group
from triolet.kvcache.manager import KVCacheManager


class LastPolicy(FcfsPolicy):
    """Last come, first served: a policy of a user's own."""

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        return (-sequence.group.arrival,)


def sequence(number: int, *, priority: int = 0, key: str = "") -> Sequence:
    request = Request(
        id=RequestId(str(number)),
        prompt_token_ids=(TokenId(1),),
        params=SamplingParams(max_tokens=1),
        seed=0,
        priority=priority,
        fairness_key=key,
    )
    blocks = KVCacheManager(num_blocks=1, block_size=1).open()
    return new_group(request, arrival=number, blocks=blocks).sequences[0]


def order(name: str, waiting: list[Sequence], *, cost: int = 0) -> list[str]:
    """The ids in the order of admission, each charged with `cost` tokens as it is admitted."""
    policy = make_policy(name)
    for each in waiting:
        policy.push(each)
    ids = []
    while (first := policy.peek()) is not None:
        policy.remove(first)
        policy.charge(first, cost)
        ids.append(first.request.id)
    assert len(policy) == 0
    return ids


def test_fcfs_looks_at_arrival_alone() -> None:
    """Priorities and keys change nothing."""
    assert order("fcfs", [sequence(2, priority=-1), sequence(1, key="a"), sequence(3)]) == ["1", "2", "3"]


def test_priority_puts_lower_numbers_first() -> None:
    """Within one priority, first come first served."""
    waiting = [sequence(1, priority=5), sequence(2), sequence(3, priority=-1), sequence(4)]
    assert order("priority", waiting) == ["3", "2", "4", "1"]


def test_a_request_that_names_no_priority_has_0() -> None:
    """Better than 1, worse than -1."""
    request = Request(id=RequestId("r"), prompt_token_ids=(TokenId(1),), params=SamplingParams(max_tokens=1), seed=0)
    assert request.priority == 0


def test_fair_takes_keys_in_turn() -> None:
    """A key that asks for a lot does not keep the others waiting."""
    waiting = [*(sequence(number, key="greedy") for number in range(1, 5)), sequence(5, key="a"), sequence(6, key="b")]
    served = order("fair", waiting, cost=10)
    assert served.index("5") < served.index("2")
    assert served.index("6") < served.index("2")


def test_fair_saves_nothing_up_for_the_idle() -> None:
    """A key that comes late starts level with the others, not ahead by all that they were given before."""
    policy = make_policy("fair")
    for number in range(1, 41):
        early = sequence(number, key="early")
        policy.push(early)
        policy.remove(early)
        policy.charge(early, 10)
    late = [sequence(number, key="late") for number in range(41, 61)]
    for each in (sequence(100, key="early"), *late):
        policy.push(each)
    served = []
    for _ in range(4):
        first = policy.peek()
        assert first is not None
        policy.remove(first)
        policy.charge(first, 10)
        served.append(first.request.fairness_key)
    assert "early" in served


def test_a_policy_of_ones_own_is_named_by_its_import_path() -> None:
    """package.module:Class, any subclass of Policy."""
    assert order(f"{__name__}:LastPolicy", [sequence(1), sequence(2), sequence(3)]) == ["3", "2", "1"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("lifo", "fcfs, priority, fair, or package.module:Class"),
        ("no.such.module:Class", "cannot be imported"),
        (f"{__name__}:NoSuch", "cannot be imported"),
        (f"{__name__}:sequence", "not a subclass"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, what: str) -> None:
    """The message says what is wrong and names the flag."""
    with pytest.raises(ConfigurationError, match=what) as caught:
        make_policy(name)
    assert "--scheduling-policy" in caught.value.message
