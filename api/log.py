"""The log: one line for each event on stderr, and the periodic line that tells how the engine fares.

Prompts, answers and keys are never logged; at debug, requests are named by their id.
"""

import json
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio

if TYPE_CHECKING:
    from ..engine.stats import EngineStats

log = logging.getLogger(__name__)

INTERVAL_S = 10.0


class OneLine(logging.Formatter):
    """`2026-11-29 19:05:00 INFO triolet.api.serve: text`; line ends inside a text are escaped.

    A traceback follows as it is: an error of our own is worth more than one line.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class JsonLine(logging.Formatter):
    """An event as one JSON object: `time` (Unix), `level`, `logger`, `message`, and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)


def configure_logging(level: str, style: str = "text") -> None:
    """Send our log to stderr from `level` on, and other libraries' from warnings on. Called once, by the command.

    `style`: text (OneLine) or json (JsonLine).
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine() if style == "json" else OneLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("triolet").setLevel(level.upper())


def describe(*configs: Any) -> str:
    """The settings that are not the defaults, as the flags spell them; keys and passwords are left out."""
    told = [
        f"--{field.name.replace('_', '-')} {value}"
        for config in configs
        for field in attrs.fields(type(config))
        if field.repr and (value := getattr(config, field.name)) != field.default
    ]
    return " ".join(told) or "as by default"


class Throughput:
    """Turns the engine's counters into the periodic line, from the difference to the last one."""

    def __init__(self, stats: "EngineStats", now_s: float) -> None:
        self._last = stats
        self._last_s = now_s

    def line(self, stats: "EngineStats", now_s: float) -> str | None:
        """The line for the time since the last call; None when nothing ran and nothing waits."""
        last, seconds = self._last, max(now_s - self._last_s, 1e-9)
        self._last, self._last_s = stats, now_s
        computed = stats.prompt_tokens - stats.cached_prompt_tokens - last.prompt_tokens + last.cached_prompt_tokens
        generated = stats.generation_tokens - last.generation_tokens
        if not (stats.running or stats.waiting or computed or generated):
            return None
        queries = stats.prefix_queries - last.prefix_queries
        hits = stats.prefix_hits - last.prefix_hits
        return (
            f"Avg prompt throughput: {computed / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {generated / seconds:.1f} tokens/s, "
            f"Running: {stats.running} reqs, Waiting: {stats.waiting} reqs, Preemptions: {stats.preemptions}, "
            f"{'GPU' if stats.cache.device == 'cuda' else 'CPU'} KV cache usage: {stats.kv_usage:.1%}, "
            f"Prefix cache hit rate: {hits / queries if queries else 0:.1%}"
        )


async def log_throughput(read: "Callable[[], EngineStats]", interval_s: float = INTERVAL_S) -> None:
    """Logs the line every `interval_s`, except while idle. Runs until cancelled."""
    throughput = Throughput(read(), trio.current_time())
    while True:
        await trio.sleep(interval_s)
        line = throughput.line(read(), trio.current_time())
        if line is not None:
            log.info(line)
