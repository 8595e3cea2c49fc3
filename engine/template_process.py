"""Renders a request's own chat template in another process, so that whatever it does can be ended.

Imports trio. The process (`model/render_apart.py`) knows nothing of ours but the conversation: no key is in its
environment, and it bounds its own memory and processor time; here it gets a time on the wall.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import trio

from .core.errors import InvalidRequest, RequestFailed
from .prompt import ChatPrompt

TIME_S = 5.0
"""From starting the process to its answer. Starting takes 0.1 to 0.3 s, a template's own limit is 1 s."""

PROCESSES = 2
"""At most this many at a time. The others wait in their requests' tasks, which the queue's bound counts."""

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")


class TemplateProcesses:
    """The renderings under way, bounded in number."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(PROCESSES)

    async def render(self, prompt: ChatPrompt, special_tokens: Mapping[str, Any]) -> str:
        """The text of a conversation by its own template. Cancelled, the process is ended.

        Raises InvalidRequest (param `chat_template`) for all that the template does wrong, its time included.
        """
        job = {
            "template": prompt.chat_template,
            "messages": list(prompt.messages),
            "special_tokens": dict(special_tokens),
            "add_generation_prompt": prompt.add_generation_prompt,
            "kwargs": prompt.variables,
        }
        data = json.dumps(job).encode()
        async with self._limiter:
            answer = await _ask(data)
        if answer is None:
            raise InvalidRequest(
                "The request's chat template took too much time or memory, and was stopped.", param="chat_template"
            )
        if "error" in answer:
            raise InvalidRequest(answer["error"], param=answer["param"])
        return str(answer["text"])


async def _ask(data: bytes) -> dict[str, Any] | None:
    """None: it was ended, by us or by the kernel."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-m", f"{__package__.partition('.')[0]}.model.render_apart"]
    result = None
    with trio.move_on_after(TIME_S):
        result = await trio.run_process(
            command, stdin=data, capture_stdout=True, capture_stderr=True, check=False, env=environment
        )
    if result is None or result.returncode < 0:
        return None
    if result.returncode > 0:
        said = result.stderr.decode(errors="replace")
        if "MemoryError" in said:
            return None
        raise RequestFailed("The chat template could not be rendered.") from RuntimeError(said[-1000:])
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer
