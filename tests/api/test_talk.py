"""Conversations without a terminal's device: what is read, asked, shown and kept. The server is a script."""

import io
import signal
from typing import Any

import attrs
import pytest
import trio

from triolet.api.asking.client import Refused
from triolet.api.asking.options import AskOptions, ChatOptions, CompleteOptions
from triolet.api.asking.screen import Screen
from triolet.api.asking.talk import Chat, Completion, Talk, Told
from triolet.engine.core.errors import ConfigurationError

Line = str | type[KeyboardInterrupt]


class Keyboard(io.StringIO):
    """What somebody types: lines, and Ctrl-C; then the end."""

    def __init__(self, *lines: Line) -> None:
        super().__init__()
        self._lines = list(lines)

    def isatty(self) -> bool:
        return True

    def readline(self, *_: Any) -> str:
        if not self._lines:
            return ""
        line = self._lines.pop(0)
        if isinstance(line, str):
            return line + "\n"
        raise line


class Display(io.StringIO):
    """A terminal to write to."""

    def isatty(self) -> bool:
        return True


def event(**delta: str) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


@attrs.define(kw_only=True)
class Scene:
    """One run of a command."""

    answers: list[list[dict[str, Any] | BaseException]] = attrs.field(factory=list)
    """For each question the events, and what is raised between them; [] is two events."""
    bodies: list[dict[str, Any]] = attrs.field(factory=list)
    paths: list[str] = attrs.field(factory=list)
    out: io.StringIO = attrs.field(factory=io.StringIO)
    err: io.StringIO = attrs.field(factory=io.StringIO)

    def ask(self, path: str, body: dict[str, Any], told: Told) -> None:
        told.started_s = trio.current_time()
        self.paths.append(path)
        self.bodies.append({**body, "messages": list(body.get("messages", ()))})
        for each in (self.answers.pop(0) if self.answers else None) or [event(content="Well"), event(content=".")]:
            if isinstance(each, BaseException):
                raise each
            told.take(each)

    def run(self, options: AskOptions, lines: io.StringIO) -> int:
        about = Chat(options=options) if isinstance(options, ChatOptions) else Completion(options=options)  # type: ignore[arg-type]
        screen = Screen(lines, self.out, self.err)
        return Talk(about=about, model="m", ask=self.ask, screen=screen).run()

    @property
    def said(self) -> list[list[str]]:
        """Of each question: what its messages say."""
        return [[message["content"] for message in body["messages"]] for body in self.bodies]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is half a second later: nothing here runs in trio."""
    ticks = iter(range(1000))
    monkeypatch.setattr("trio.current_time", lambda: next(ticks) / 2)


def test_a_pipe_is_a_conversation_of_lines_in_plain_text() -> None:
    """Each line is a message that has all before it in front; only the answers come out."""
    scene = Scene(answers=[[event(role="assistant", content=""), event(content="One\x1b[1m"), event(content="\n2")]])
    assert scene.run(ChatOptions(system_prompt="Be brief."), io.StringIO("first\n\nsecond")) == 0
    assert scene.out.getvalue() == "One\x1b[1m\n2\nWell.\n"
    assert scene.err.getvalue() == ""
    assert scene.said == [["Be brief.", "first"], ["Be brief.", "first", "One\x1b[1m\n2", "second"]]
    assert scene.paths == ["/v1/chat/completions"] * 2
    assert scene.bodies[0]["model"] == "m"
    assert scene.bodies[0]["stream_options"] == {"include_usage": True}


def test_a_pipe_is_one_text_to_complete() -> None:
    """All of it, with its line ends."""
    scene = Scene(answers=[[{"choices": [{"text": " three"}]}]])
    assert scene.run(CompleteOptions(max_tokens=5, extra_body='{"temperature": 0}'), io.StringIO("one,\ntwo,")) == 0
    assert scene.out.getvalue() == " three\n"
    (body,) = scene.bodies
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("one,\ntwo,", 5, 0)
    assert scene.paths == ["/v1/completions"]


@pytest.mark.parametrize("quick", ["Hi", "-"])
def test_one_message_needs_no_conversation(quick: str) -> None:
    """--quick asks it and ends; - takes it from standard input, whole."""
    scene = Scene()
    assert scene.run(ChatOptions(quick=quick), io.StringIO("some\nlines")) == 0
    assert scene.said == [["Hi" if quick == "Hi" else "some\nlines"]]


def test_an_error_ends_a_pipe_with_status_1() -> None:
    """What was said stays said; the message is one line on stderr."""
    scene = Scene(answers=[[event(content="So f"), Refused("It\nbroke.")]])
    assert scene.run(ChatOptions(), io.StringIO("first\nsecond\n")) == 1
    assert (scene.out.getvalue(), scene.err.getvalue()) == ("So f\n", "triolet: It broke.\n")
    assert len(scene.bodies) == 1


def test_an_error_does_not_end_a_conversation() -> None:
    """A question without an answer was not asked."""
    scene = Scene(answers=[[Refused("Too long.")]])
    assert scene.run(ChatOptions(), Keyboard("first", "second")) == 0
    assert scene.said == [["first"], ["second"]]
    assert "triolet: Too long.\n" in scene.err.getvalue()


def test_ctrl_c_cancels_an_answer_and_keeps_the_conversation() -> None:
    """What was said before it is what the assistant said."""
    scene = Scene(answers=[[event(content="Half an"), KeyboardInterrupt()], [KeyboardInterrupt()]])
    assert scene.run(ChatOptions(), Keyboard("first", "second", "third")) == 0
    assert scene.said == [["first"], ["first", "Half an", "second"], ["first", "Half an", "third"]]
    assert scene.err.getvalue().count("(cancelled)") == 2
    assert scene.out.getvalue() == "Half an\n\nWell.\n"


def test_a_ctrl_c_while_nothing_is_waited_for_is_not_lost_and_breaks_nothing() -> None:
    """It comes while the end of an answer is written: that is finished, and the next wait for a line ends."""

    class Pressed(Display):
        def write(self, text: str) -> int:
            if "(cancelled)" in text:
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    scene = Scene(answers=[[event(content="Half an"), KeyboardInterrupt()]], err=Pressed())
    assert scene.run(ChatOptions(stats=True), Keyboard("first", "never asked")) == 0
    assert scene.said == [["first"]]
    assert "(cancelled)" in scene.err.getvalue()
    assert "first token after" in scene.err.getvalue()


def test_a_second_ctrl_c_leaves() -> None:
    """After the one that cancelled an answer, or another one at the prompt; a line in between forgets the first."""
    scene = Scene(answers=[[KeyboardInterrupt()]])
    assert scene.run(ChatOptions(), Keyboard("first", KeyboardInterrupt, "never asked")) == 0
    assert scene.said == [["first"]]
    scene = Scene()
    stop = KeyboardInterrupt
    assert scene.run(ChatOptions(), Keyboard(stop, "first", stop, stop, "never asked")) == 0
    assert scene.said == [["first"]]
    assert scene.err.getvalue().count("(Ctrl-C again, or Ctrl-D, leaves)") == 2


def test_ctrl_c_in_a_single_answer_is_the_exit_status() -> None:
    """130, as a shell expects it."""
    scene = Scene(answers=[[event(content="Half"), KeyboardInterrupt()]])
    assert scene.run(ChatOptions(quick="Hi"), io.StringIO()) == 130


def test_a_terminal_shows_no_control_characters_of_a_model() -> None:
    """It cannot move the cursor, set a title or clear the screen; its thoughts are dim, and not part of the answer."""
    scene = Scene(
        answers=[[event(reasoning="hm\x07"), event(content="a\x1b]0;x\x07b\x9bc\x7f\td")]], out=Display(), err=Display()
    )
    assert scene.run(ChatOptions(quick="Hi"), io.StringIO()) == 0
    assert scene.out.getvalue() == "\x1b[2mhm␇\x1b[0m\na␛]0;x␇b\ufffdc␡\td\n"


def test_of_several_answers_the_first_is_the_conversation() -> None:
    """Where --extra-body has asked for more."""
    both = {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}
    scene = Scene(answers=[[both]])
    scene.run(ChatOptions(quick="x", extra_body='{"n": 2}'), io.StringIO())
    assert (scene.out.getvalue(), scene.bodies[0]["n"]) == ("yes\n", 2)


def test_statistics_are_of_the_tokens_that_the_server_counts() -> None:
    """Time to the first, and the rate of those after it; on stderr, so that a pipe stays plain."""
    usage = {"choices": [], "usage": {"completion_tokens": 3}}
    scene = Scene(answers=[[event(content="a"), event(content="b"), event(content="c"), usage], [event(content="a")]])
    scene.run(ChatOptions(stats=True), io.StringIO("x\ny\n"))
    assert scene.err.getvalue() == "first token after 500 ms, 3 tokens, 2.0 tok/s\nfirst token after 500 ms\n"
    scene = Scene(answers=[[event(role="assistant")]])
    scene.run(ChatOptions(stats=True, quick="x"), io.StringIO())
    assert scene.err.getvalue() == "nothing was said\n"


@pytest.mark.parametrize("bad", [{"choices": 1}, {"choices": [1]}, {"usage": {"x": 1}}, event(content=1)])  # type: ignore[arg-type]
def test_an_event_of_another_shape_is_an_error_and_no_crash(bad: dict[str, Any]) -> None:
    """The server may be anybody's."""
    scene = Scene(answers=[[bad]])
    assert scene.run(ChatOptions(quick="x"), io.StringIO()) == 1
    assert scene.err.getvalue() == "triolet: The server sent an event of a shape that is not OpenAI's.\n"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "--max-tokens must be at least 1, not 0."),
        ({"extra_body": "[]"}, "--extra-body must be a JSON object"),
    ],
)
def test_a_mistake_in_the_flags_names_the_flag(fields: dict[str, Any], message: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(ConfigurationError, match=message.replace(".", r"\.")):
        ChatOptions(**fields)
