"""Inboxes: synchronous to put, bounded, and drained at once."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.engine.inbox import Inbox


async def test_the_owner_sleeps_until_a_message_comes_and_takes_all_in_their_order() -> None:
    """Waiting takes nothing; draining takes everything, oldest first."""
    inbox: Inbox[int] = Inbox(3)
    drained: list[list[int]] = []

    async def own() -> None:
        for _ in range(2):
            await inbox.wait()
            drained.append(inbox.drain())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(own)
        await wait_all_tasks_blocked()
        inbox.put(1)
        inbox.put(2)
        await wait_all_tasks_blocked()
        assert drained == [[1, 2]]
        inbox.put(3)
    assert drained == [[1, 2], [3]]
    assert inbox.drain() == []


async def test_a_cancelled_owner_loses_no_message() -> None:
    """A wait that is cancelled leaves what is there."""
    inbox: Inbox[int] = Inbox(1)
    inbox.put(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.wait()
    assert scope.cancelled_caught
    await inbox.wait()
    assert list(inbox) == [1]


def test_more_than_the_bound_is_our_bug() -> None:
    """An inbox holds what its reason allows, and raises instead of growing."""
    inbox: Inbox[int] = Inbox(1)
    inbox.put(1)
    with pytest.raises(AssertionError, match="limit of 1"):
        inbox.put(2)
