"""`triolet run-batch`: the command; nothing heavy until it runs."""

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from ...engine.config import EngineConfig
from ...engine.core.errors import EngineDead, RequestError
from ..asking.cli import ENGINE, with_model
from .options import CONCURRENCY_REMOTE, BatchOptions

_BATCH = Group.create_ordered("Batch")
_ENGINE = Group.create_ordered("Engine (without --url)")

if TYPE_CHECKING:
    from ..asking.client import Client
    from .files import OutputFile


def run_batch(
    model: str | None = None,
    /,
    *,
    options: Annotated[BatchOptions, Parameter(name="*", group=_BATCH)],
    engine: Annotated[EngineConfig, Parameter(name="*", group=_ENGINE)] = ENGINE,
) -> int:
    """Answer a file of requests into another (OpenAI's batch format): by a server at --url, or a model loaded here.

    Whatever ended it, the same command goes on where it was. Exit status 1: a request has no answer yet, or failed.

    Parameters
    ----------
    model
        A folder (Hugging Face layout), a .gguf file or a hub name (owner/name). Without one, the built-in model.
    """
    from ..log import configure_logging
    from .files import OutputFile, check_files, read_lines

    configure_logging("warning")
    engine = with_model(model, engine)
    check_files(options.input_file, options.output_file)
    with OutputFile(options.output_file, drop_failed=options.retry_failed) as output:
        num_left = sum(not output.has(line) for line in read_lines(options.input_file))
        message: str | None = None
        try:
            if num_left:
                _answer(options, engine, output, num_left)
        except (RequestError, EngineDead) as error:
            message = error.message
        except OSError as error:
            message = f"{options.output_file}: {error.strerror}."
        except (KeyboardInterrupt, SystemExit):
            _report(options, output, whole=False)
            raise
        if message is not None:
            print(f"triolet: {' '.join(message.split())}", file=sys.stderr)
        _report(options, output, whole=message is None)
        return int(message is not None or output.num_failed > 0)


def _report(options: BatchOptions, output: "OutputFile", *, whole: bool) -> None:
    """What the output holds."""
    found = f" ({output.num_found} of them by earlier runs)" if output.num_found else ""
    rest = "" if whole else " It is not done: run the same command again to go on."
    done = f"{output.num_answered} answered, {output.num_failed} failed{found}"
    print(f"triolet: {done}: {options.output_file}.{rest}", file=sys.stderr)


def _answer(options: BatchOptions, engine: EngineConfig, output: "OutputFile", num_left: int) -> None:
    """Raises what `Batch.run` does, and StartError."""
    from ...engine.progress import request_bar
    from ..asking.target import reach
    from .files import read_lines
    from .run import Batch, look_up

    concurrency = options.concurrency or (CONCURRENCY_REMOTE if options.url is not None else engine.max_num_seqs)
    concurrency = min(concurrency, num_left)
    with reach(options, engine, served_names=options.served_model_name) as server:
        server.call(look_up)
        with request_bar(num_left, show=True) as ended:
            batch = Batch(lines=read_lines(options.input_file), output=output, ended=ended)

            async def run(client: "Client") -> None:
                await batch.run(client.post, concurrency=concurrency)

            server.call(run)
