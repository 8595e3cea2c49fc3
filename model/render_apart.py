"""Renders a chat template that came with a request, in a process of its own: `python -m triolet.model.render_apart`.

The engine starts it for one rendering, hands it a JSON object on standard input, reads the answer from standard output
and ends it after a time. It needs neither torch nor trio. What the sandbox and `template_limits.py` do not bound, the
kernel does: memory and processor time are limited before the template is looked at, no file may be written, and no
process started.
"""

import json
import resource
import sys
from typing import Any

MEMORY_BYTES = 512 * 1024 * 1024
"""Address space; python and jinja2 take some 100 MiB of it."""

CPU_S = 2
"""Processor time, starting included. Past it the kernel ends the process."""


def confine() -> None:
    """Give up what a rendering does not need. For good."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def render(job: dict[str, Any]) -> dict[str, Any]:
    """`text`, or the `error` of an InvalidRequest and its `param`."""
    from ..engine.core.errors import InvalidRequest
    from .chat_template import ChatTemplate
    from .template_limits import REQUEST_LIMITS

    template = ChatTemplate(job["template"], job["special_tokens"], limits=REQUEST_LIMITS, whose="request")
    try:
        text = template.render(job["messages"], add_generation_prompt=job["add_generation_prompt"], **job["kwargs"])
        text.encode()
    except InvalidRequest as error:
        return {"error": error.message, "param": error.param}
    except (MemoryError, RecursionError) as error:
        return {"error": f"The request's chat template failed: {type(error).__name__}.", "param": "chat_template"}
    except UnicodeEncodeError:
        error_text = "The request's chat template makes half of a surrogate pair, which is no character."
        return {"error": error_text, "param": "chat_template"}
    return {"text": text}


def main() -> None:
    data = sys.stdin.buffer.read()
    confine()
    answer = json.dumps(render(json.loads(data))).encode()
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
