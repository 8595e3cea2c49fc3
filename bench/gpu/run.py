"""The GPU path on a card, in under eight minutes: is it right, and how near is it to what the card can do?

    python -m bench.gpu.run                 # on a machine with an NVIDIA GPU
    python -m bench.gpu.run --dry           # tiny, on the CPU, kernels in Triton's interpreter: does the script run?

Sections: every kernel against its reference; the card's own speed; decode attention against it; step times of a model
of Llama 3.1 8B's shape with random weights against the roofline, in bf16 and fp8, with graphs and without; tokens a
second through HTTP with 128 streams and through transformers' continuous batching, of a model of Llama 3.2 1B's shape.
Status 1: something is wrong or failed; a missed goal is printed and is no failure. 2: there is no GPU.
"""

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU, in Triton's interpreter")
    parser.add_argument("--only", nargs="*", default=[], help="sections to run: kernels card attention steps serving")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    import torch

    if not options.dry and not torch.cuda.is_available():
        print("bench.gpu.run: no CUDA GPU is visible to torch; --dry runs the script on the CPU.", file=sys.stderr)
        return 2
    from .sections import run_sections

    return run_sections(set(options.only), dry=options.dry)


if __name__ == "__main__":
    sys.exit(main())
