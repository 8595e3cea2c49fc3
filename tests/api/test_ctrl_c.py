"""Ctrl-C as a conversation hears it: signals that this process sends itself."""

import queue
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from triolet.api.asking.ctrl_c import CtrlC

press = partial(signal.raise_signal, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test does, the next one finds Ctrl-C as this one did."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_it_is_raised_where_somebody_listens() -> None:
    """What is waited for goes on to be the result otherwise."""
    with CtrlC() as ctrl_c:
        assert ctrl_c.listen(lambda: "a line") == "a line"
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.listen(press)
        assert ctrl_c.listen(lambda: "a line") == "a line"


def test_it_is_kept_while_nobody_listens() -> None:
    """The next who listens gets it before he waits, once, however often it came."""
    waits: list[str] = []
    with CtrlC() as ctrl_c:
        press()
        press()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.listen(lambda: waits.append("wait"))
        assert waits == []
        ctrl_c.listen(lambda: waits.append("wait"))
        assert waits == ["wait"]


def test_the_third_that_nobody_hears_is_raised_where_it_comes() -> None:
    """A clean-up that hangs can be ended."""
    with CtrlC() as ctrl_c:
        press()
        press()
        with pytest.raises(KeyboardInterrupt):
            press()
        assert ctrl_c.listen(lambda: "a line") == "a line"


def test_one_that_is_kept_to_the_end_is_raised_there() -> None:
    """A command that was ended so does not say that all is well."""
    with pytest.raises(KeyboardInterrupt), CtrlC():
        press()


def test_an_error_says_more_than_a_kept_one() -> None:
    """It is what is raised at the end."""

    def talk() -> None:
        with CtrlC():
            press()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        talk()


def test_it_does_not_disturb_what_answers_the_one_before() -> None:
    """Neither the waiter's own clean-up nor the handler's: that is a second one, for the next who listens."""
    answered: list[str] = []
    with CtrlC() as ctrl_c:

        def wait() -> None:
            try:
                press()
            finally:
                press()
                answered.append("by the waiter")

        try:
            ctrl_c.listen(wait)
        except KeyboardInterrupt:
            answered.append("by the caller")
        assert answered == ["by the waiter", "by the caller"]
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.listen(lambda: None)


def test_one_that_wakes_nobody_is_heard_all_the_same() -> None:
    """The signal is another thread's: this one's wait in C is not ended by it, as by one that came before the wait."""
    thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    with CtrlC() as ctrl_c:

        def wait() -> None:
            thread.start()
            queue.SimpleQueue[None]().get(timeout=60)

        with pytest.raises(KeyboardInterrupt):
            ctrl_c.listen(wait)
    thread.join()


def test_all_is_as_it_was_afterwards() -> None:
    """The handlers and the timer, also after an error, and a timer that somebody else had set."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 5000, 7000)
    with CtrlC():
        assert signal.getitimer(signal.ITIMER_REAL)[1] < 1
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 7000
    signal.setitimer(signal.ITIMER_REAL, 0)

    def talk() -> None:
        with CtrlC():
            assert signal.getsignal(signal.SIGINT) != before[0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        talk()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(KeyboardInterrupt):
        press()


def test_a_process_that_ignores_it_goes_on_to() -> None:
    """As one that a shell has put into the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with CtrlC() as ctrl_c:
        ctrl_c.listen(press)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_outside_of_the_main_thread_it_changes_nothing() -> None:
    """Signals are handled in the main thread alone."""
    before, seen = signal.getsignal(signal.SIGINT), []

    def talk() -> None:
        with CtrlC() as ctrl_c:
            seen.append((ctrl_c.listen(lambda: "a line"), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=talk)
    thread.start()
    thread.join()
    assert seen == [("a line", before)]
