"""The `triolet` command: its flags are the fields of EngineConfig and ServerConfig.

Nothing heavy is imported until a command runs, so that help is quick. A mistake in the flags, and an engine that
refuses to start, is one line on stderr and exit status 2.
"""

import os
import sys
from typing import Annotated

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter

from .. import __version__
from ..engine.config import EngineConfig
from ..engine.core.errors import ConfigurationError, StartError
from .asking.cli import chat, complete, with_model
from .batch.cli import run_batch
from .bench.cli import app as bench
from .config import ADMIN_KEY_VARIABLE, KEY_VARIABLE, ServerConfig, parse_size
from .config_file import apply_config_file
from .planning import MachineOptions, PlanOptions
from .simulating import SimulateOptions

SIZE_FLAGS = (
    "--kv-cache-memory",
    "--kv-cache-prefault",
    "--max-body-size",
    "--response-store-size",
    "--memory",
    "--activations",
)

HELP = """An LLM serving engine: a paged KV cache and continuous batching behind an OpenAI-compatible server.

`triolet serve` alone serves a small built-in model on http://127.0.0.1:8000/v1.
"""


def _read_sizes(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Turn `2GiB` into bytes, for the flags that take a size."""
    for argument in arguments:
        if argument.name in SIZE_FLAGS:
            argument.tokens[:] = [
                token.evolve(value=str(parse_size(token.value, argument.name))) if token.value else token
                for token in argument.tokens
            ]


app = App(name="triolet", version=__version__, help=HELP, config=(apply_config_file, _read_sizes))
app.command(bench)
app.command(chat)
app.command(complete)
app.command(run_batch)

_SERVER = Group.create_ordered("Server")
_ENGINE = Group.create_ordered("Engine")
_LOAD = Group.create_ordered("Load")
_MACHINE = Group.create_ordered("Machine")

SERVER_DEFAULTS = ServerConfig()
ENGINE_DEFAULTS = EngineConfig()
PLAN_DEFAULTS = PlanOptions()
MACHINE_DEFAULTS = MachineOptions()
SIMULATE_DEFAULTS = SimulateOptions()


@app.command
def serve(
    model: str | None = None,
    /,
    *,
    server: Annotated[ServerConfig, Parameter(name="*", group=_SERVER)] = SERVER_DEFAULTS,
    engine: Annotated[EngineConfig, Parameter(name="*", group=_ENGINE)] = ENGINE_DEFAULTS,
) -> int:
    """Serve a model over HTTP, with OpenAI's routes.

    Parameters
    ----------
    model
        A folder (Hugging Face layout), a .gguf file or a hub name (owner/name). Without one, the built-in model.
    """
    engine = with_model(model, engine)
    for keys, variable in ((server.api_key, KEY_VARIABLE), (server.admin_api_key, ADMIN_KEY_VARIABLE)):
        if not keys and variable in os.environ:
            raise ConfigurationError(f"{variable} is empty: set it to a key, or unset it to let everybody in.")

    from .log import configure_logging

    configure_logging(server.log_level, server.log_format)

    import trio

    from ..engine.open import open_engine
    from ..engine.progress import loading_bars
    from . import serve as serving

    async def run() -> int:
        return await serving.serve(engine, server, open_engine=open_engine, version=__version__, loading=loading_bars)

    return trio.run(run)


@app.command
def plan(model: str | None = None, /, *, options: Annotated[PlanOptions, Parameter(name="*")] = PLAN_DEFAULTS) -> int:
    """What a model would take and give on a machine: memory, sequences, and the roofline of its steps.

    No weights are loaded; of a hub model the configuration alone is fetched.

    Parameters
    ----------
    model
        A folder (Hugging Face layout), a .gguf file or a hub name (owner/name). Without one, the built-in model.
    """
    from ..engine.shape import read_shape
    from .planning import make_plan, print_plan

    name, spec = read_shape(model)
    made = make_plan(name, spec, options, model_dtype=spec.torch_dtype, model_len=spec.max_position_embeddings)
    print_plan(made, as_json=options.json)
    return 0


@app.command
def simulate(
    model: str | None = None,
    /,
    *,
    load: Annotated[SimulateOptions, Parameter(name="*", group=_LOAD)] = SIMULATE_DEFAULTS,
    machine: Annotated[MachineOptions, Parameter(name="*", group=_MACHINE)] = MACHINE_DEFAULTS,
) -> int:
    """A load on a machine that need not be there: the real scheduler and allocator, and a formula for the device.

    A step takes its roofline (of a --gpu, or of --bandwidth and --tflops) divided by --efficiency, and --step-ms and
    --token-us on top; or what was measured (--costs).

    Parameters
    ----------
    model
        A folder (Hugging Face layout), a .gguf file or a hub name (owner/name). Without one, the built-in model.
    """
    from ..engine.shape import read_shape
    from .planning import make_estimate
    from .simulating import print_report, report_of, simulate_load
    from .simulation_plot import plot_outcome

    name, spec = read_shape(model)
    found, _, _ = make_estimate(spec, machine, model_dtype=spec.torch_dtype)
    outcome = simulate_load(found, load, model_len=spec.max_position_embeddings)
    if load.plot is not None:
        plot_outcome(outcome, load.plot, f"{name} on {found.hardware.name}, simulated")
    print_report(report_of(outcome), as_json=machine.json)
    return 0


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the `triolet` command. Always raises SystemExit."""
    try:
        status = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _complain(str(error))
    except StartError as error:
        _complain(error.message)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> None:
    print(f"triolet: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
