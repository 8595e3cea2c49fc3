"""How long a step of the built-in model takes, by torch and by the native kernels, and where the time goes.

    python -m bench.step
    python -m bench.step --variants bfloat16,int8 --threads 1 --clock cpu
    python -m bench.step --no-torch --breakdown

Decodes of 1, 8, 32 and 64 sequences over contexts of 256 and 1,024 tokens, prompts of 512 and 2,048. The ways to
compute take turns step by step, so that their ratio is of one run; each figure is the best of several steps. `--clock
cpu` counts the time of the calling thread alone, which other processes disturb less: with `--threads 1` it is that of
the work.
"""

import argparse
import time

import torch

from triolet.model.forward import ForwardPass
from triolet.model.native.forward import NativeForward
from triolet.model.native.library import Format
from triolet.model.source import resolve_source

from .native_steps import Variant, native_forward, step, torch_forward

NUM_BLOCKS = 64 * 64 + 64
CASES = (
    *((f"decode, {batch} x {context}", batch, context, 1) for context in (256, 1024) for batch in (1, 8, 32, 64)),
    ("decode, 128 x 256", 128, 256, 1),
    *((f"prompt of {count}", 1, count, count) for count in (512, 1024, 2048)),
    *((f"chunk, 320 at {context}", 1, context, 320) for context in (320, 1024, 4000)),
)
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
VARIANTS = {
    "float32": Variant(Format.FLOAT32, Format.FLOAT32),
    "bfloat16": Variant(Format.BFLOAT16, Format.BFLOAT16),
    "bfloat16-kv8": Variant(Format.BFLOAT16, Format.INT8),
    "int8": Variant(Format.INT8, Format.BFLOAT16),
    "int8-kv8": Variant(Format.INT8, Format.INT8),
    "int4": Variant(Format.INT4, Format.BFLOAT16),
}


def breakdown(forward: NativeForward, work: object, steps: int) -> str:
    """Milliseconds of a step, by what is done."""
    forward.profile = True
    forward.tape.take_seconds()
    for _ in range(steps):
        forward(work)  # type: ignore[arg-type]
    forward.profile = False
    spent = sorted(forward.tape.take_seconds().items(), key=lambda item: -item[1])
    return ", ".join(f"{label} {seconds / steps * 1e3:.2f}" for label, seconds in spent if seconds / steps > 2e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", default="bfloat16,int8,int4", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--steps", type=int, default=12, help="steps of a decode; a prompt takes a third")
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--breakdown", action="store_true")
    arguments = parser.parse_args()
    source, clock = resolve_source(None), CLOCKS[arguments.clock]
    torch.set_num_threads(arguments.threads)
    ways: dict[str, ForwardPass] = {}
    if arguments.torch:
        ways["torch"] = torch_forward(source, torch.bfloat16, num_blocks=NUM_BLOCKS)
    for name in arguments.variants.split(","):
        forward = native_forward(source, VARIANTS[name], num_blocks=NUM_BLOCKS, threads=arguments.threads)
        forward.threads.choose = lambda num_tokens: arguments.threads  # type: ignore[method-assign]
        ways[name] = forward
    for case, batch, context, count in CASES:
        if arguments.cases not in case:
            continue
        work = step(range(5, 5 + count), batch=batch, context=context, num_blocks=NUM_BLOCKS)
        best = dict.fromkeys(ways, float("inf"))
        with torch.inference_mode():
            for _ in range(arguments.steps if count == 1 else max(2, arguments.steps // 3)):
                for name, way in ways.items():
                    started = clock()
                    way(work)
                    best[name] = min(best[name], clock() - started)
        base = next(iter(best.values()))
        figures = [
            f"{name} {s * 1e3:8.2f} ms {batch * count / s:6.0f} tok/s {base / s:5.2f}x" for name, s in best.items()
        ]
        print(f"{case:<18}", " | ".join(figures), flush=True)
        if arguments.breakdown:
            for name, way in ways.items():
                if isinstance(way, NativeForward):
                    print(f"    {name}: {breakdown(way, work, 3)}", flush=True)


if __name__ == "__main__":
    main()
