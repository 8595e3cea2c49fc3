"""Mailboxes: merged deltas, one reader, and an end that comes exactly once."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.engine.core.errors import RequestFailed
from triolet.engine.core.events import FinishReason
from triolet.engine.mailbox import Delta, End, Mailbox

STOP = End(reason=FinishReason.STOP, num_output_tokens=2)


async def test_what_is_pending_comes_as_one_delta() -> None:
    """A reader that is behind gets all texts joined, their tokens, and the end, at once."""
    mailbox = Mailbox()
    mailbox.put("a", (1,))
    mailbox.put("b", (2, 3))
    mailbox.finish(STOP)
    assert await mailbox.take() == Delta(choice=0, text="ab", token_ids=(1, 2, 3), end=STOP)
    assert await mailbox.take() is None


async def test_a_waiting_reader_is_woken_by_text_and_by_the_end() -> None:
    """Tokens without text wait for the next text, or the end."""
    mailbox = Mailbox()
    taken: list[Delta | None] = []

    async def read() -> None:
        while (delta := await mailbox.take()) is not None:
            taken.append(delta)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        mailbox.put("", (1,))
        await wait_all_tasks_blocked()
        assert taken == []
        mailbox.put("x", (2,))
        await wait_all_tasks_blocked()
        assert taken == [Delta(choice=0, text="x", token_ids=(1, 2), end=None)]
        mailbox.put("", (3,))
        mailbox.finish(STOP)
    assert taken[1:] == [Delta(choice=0, text="", token_ids=(3,), end=STOP)]


async def test_a_cancelled_reader_loses_nothing() -> None:
    """Cancelled while waiting, and cancelled with something pending, the next take has it all."""
    mailbox = Mailbox()
    with trio.move_on_after(0):
        await mailbox.take()
    mailbox.put("x", (1,))
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.take()
    assert scope.cancelled_caught
    assert await mailbox.take() == Delta(choice=0, text="x", token_ids=(1,), end=None)


async def test_the_answers_of_a_request_take_turns() -> None:
    """Each delta belongs to one answer; the one that has waited longest comes first; the request ends with the last."""
    mailbox = Mailbox(2)
    mailbox.put("b", (1,), 1)
    mailbox.put("a", (2,), 0)
    mailbox.put("b", (3,), 1)
    mailbox.finish(STOP, 0)
    assert not mailbox.finished
    assert await mailbox.take() == Delta(choice=1, text="bb", token_ids=(1, 3), end=None)
    assert await mailbox.take() == Delta(choice=0, text="a", token_ids=(2,), end=STOP)
    mailbox.finish(STOP, 1)
    assert mailbox.finished
    assert await mailbox.take() == Delta(choice=1, text="", token_ids=(), end=STOP)
    assert await mailbox.take() is None


async def test_a_failure_comes_after_the_text_that_was_there() -> None:
    """What was ready is read first; from then on every take raises the error."""
    mailbox = Mailbox()
    mailbox.put("x", (1,))
    mailbox.fail(RequestFailed("broken"))
    assert await mailbox.take() == Delta(choice=0, text="x", token_ids=(1,), end=None)
    for _ in range(2):
        with pytest.raises(RequestFailed, match="broken"):
            await mailbox.take()


@pytest.mark.parametrize("first", ["finish", "fail"])
@pytest.mark.parametrize("second", ["put", "finish", "fail"])
def test_nothing_comes_after_the_terminal_event(first: str, second: str) -> None:
    """A second end, or text after the end, is our bug and raises."""
    mailbox = Mailbox()
    actions = {
        "put": lambda: mailbox.put("x", (1,)),
        "finish": lambda: mailbox.finish(STOP),
        "fail": lambda: mailbox.fail(RequestFailed("broken")),
    }
    actions[first]()
    with pytest.raises(AssertionError):
        actions[second]()


async def test_a_closed_mailbox_drops_what_comes_and_refuses_its_reader() -> None:
    """After the reader has gone puts cost nothing, the end may still come, and a late read raises."""
    mailbox = Mailbox()
    mailbox.put("x", (1,))
    mailbox.close()
    mailbox.put("y", (2,))
    mailbox.finish(STOP)
    with pytest.raises(trio.ClosedResourceError):
        await mailbox.take()


async def test_a_mailbox_has_one_reader() -> None:
    """A second task that waits in the same mailbox is our bug and raises."""
    mailbox = Mailbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.take)
        await wait_all_tasks_blocked()
        with pytest.raises(AssertionError):
            await mailbox.take()
        nursery.cancel_scope.cancel()
