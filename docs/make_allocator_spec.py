"""Writes docs/allocator-spec.md from the docstrings of the property tests.

    python docs/make_allocator_spec.py            writes it
    python docs/make_allocator_spec.py --check    fails when it is not what would be written

The failing program at its end is made anew each time: Hypothesis runs the toy allocator and shrinks what it finds. What
it finds depends on its version, so the check looks only at which law is broken.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from property_tests import adapter, test_allocator, test_manager, test_pool, test_prefix_index  # noqa: E402
from property_tests.examples import toy  # noqa: E402

TARGET = ROOT / "docs" / "allocator-spec.md"
TOY = "property_tests.examples.toy:ToyAdapter"
CHECKED_IN = (test_allocator, test_manager, test_pool, test_prefix_index)

INTRODUCTION = """\
# The laws of a KV-block allocator

<!-- Written by docs/make_allocator_spec.py from the docstrings in property_tests/; change those. -->

A KV-block allocator hands the blocks of a paged KV cache to sequences: it shares what begins alike, copies what is
about to differ, keeps what may be asked for again, and takes back what was cancelled. This is what it must do, as laws
that are checked by machine. `property_tests/` states them in Hypothesis: plain properties first (`test_allocator.py`),
then a machine that drives an allocator and a naive model side by side (`test_manager.py`). The machine plays the
device, too: every sequence must read back, through its block tables, what it wrote.

Any allocator can be put under them:

    pytest property_tests --allocator package.module:YourAdapter

More programs are tried with `--hypothesis-profile ci` or `nightly`.
"""

EXAMPLE = """\
## A worked example

This allocator has a table for each sequence, and a fault:

```python
{allocator}```

Its adapter says what it lacks, and passes the rest on:

```python
{adapter}```

`pytest property_tests --allocator {path}` fails.
Hypothesis {version} prints the shortest program it finds that shows the fault, here for the machine:

```
{program}
```

The allocation was not met, and the block that it had taken before it ran out is gone for good: K8 is broken.
"""


def law_lines(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The numbered lines of a module's docstring."""
    for line in (module.__doc__ or "").splitlines():
        found = re.fullmatch(r"(K\d+)\s+(.*)", line)
        if found:
            yield found[1], found[2]


def checks() -> dict[str, list[str]]:
    """For each law, the tests named after it, with the first paragraph of their docstrings."""
    found: dict[str, list[str]] = {}
    for module in CHECKED_IN:
        path = Path(inspect.getsourcefile(module) or "")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                law = re.match(r"(?:test_)?k(\d+)[a-z]?_", node.name)
                text = ast.get_docstring(node)
                if law and text:
                    line = " ".join(text.split("\n\n")[0].split())
                    found.setdefault(f"K{law[1]}", []).append(f"  - `{path.name}`, `{node.name}`: {line}")
    return found


def laws() -> str:
    lines = ["## The laws", ""]
    found = checks()
    for law, text in law_lines(test_manager):
        lines.append(f"- **{law}** {text}.")
        lines += found.get(law, [])
    rest = (test_manager.__doc__ or "").split("\n\n")
    choices = next(place for place, paragraph in enumerate(rest) if paragraph.startswith("Choices"))
    return "\n".join([*lines, "", "## Choices", "", "\n\n".join(rest[choices:]).strip(), ""])


def protocol() -> str:
    """The adapter's methods with their docstrings, and what may be left out."""
    tree = ast.parse(Path(inspect.getsourcefile(adapter) or "").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    lines = ["## The adapter", "", *(adapter.__doc__ or "").split("\n\n", 1)[1].splitlines(), ""]
    for node in classes["Adapter"].body:
        if isinstance(node, ast.FunctionDef):
            signature = f"{node.name}({ast.unparse(node.args)})".replace("self, ", "").replace("self", "")
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            text = " ".join((ast.get_docstring(node) or "").split())
            lines.append(f"- `{signature}{returns}`  \n  {text}")
    lines += ["", "`unsupported` may name:", ""]
    lines += [f"- `{feature}`: {text}" for feature, text in adapter.FEATURES.items()]
    return "\n".join([*lines, ""])


def failing_program() -> str:
    """What Hypothesis prints for the toy: the law that is broken, and the operations that break it."""
    patient = settings(
        max_examples=200,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
        report_multiple_bugs=False,
    )
    with adapter.using(TOY):
        try:
            run_state_machine_as_test(test_manager.AllocatorLaws, settings=patient)
        except AssertionError as error:
            notes = "\n".join(error.__notes__).splitlines()
            return "\n".join([f"AssertionError: {error}", *(line for line in notes if line)])
    raise SystemExit("the toy allocator passes: its fault is gone, or the suite is blind")


def render() -> str:
    example = EXAMPLE.format(
        allocator=inspect.getsource(toy.ToyAllocator),
        adapter=inspect.getsource(toy.ToyAdapter),
        path=TOY,
        version=hypothesis.__version__,
        program=failing_program(),
    )
    return "\n".join([INTRODUCTION, laws(), protocol(), example])


def comparable(text: str) -> str:
    """The document without what another version of Hypothesis or of Python would print otherwise."""
    text = re.sub(r"Hypothesis [\d.]+ prints", "Hypothesis prints", text)
    return re.sub(r"(?s)(```\nAssertionError: K\d+).*?```", r"\1```", text)


def up_to_date() -> bool:
    """Whether the file says what would be written; of the failing program only the broken law is compared."""
    return comparable(TARGET.read_text()) == comparable(render())


def main() -> None:
    if "--check" in sys.argv[1:]:
        if not up_to_date():
            raise SystemExit("docs/allocator-spec.md is out of date: run python docs/make_allocator_spec.py")
    else:
        TARGET.write_text(render())


if __name__ == "__main__":
    main()
