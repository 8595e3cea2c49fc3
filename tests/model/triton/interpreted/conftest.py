"""Runs the tests of this folder in a process of its own, where triton is imported with its interpreter on.

Triton looks at TRITON_INTERPRET when it is imported, and the other tests import it without. So the first of these tests
starts one pytest for all of them that were selected, and each then says what became of it there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPORT = "TRIOLET_INTERPRETED_REPORT"
"""Names the file that the inner pytest writes its outcomes to."""
HERE = Path(__file__).parent

if REPORT in os.environ:
    from ..interpreter import mend

    mend()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the inner process: one line for each phase of a test."""
    if REPORT in os.environ:
        with Path(os.environ[REPORT]).open("a") as file:
            file.write(json.dumps([report.nodeid, report.passed, report.longreprtext]) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the outer process: the outcome that the inner one wrote down."""
    if REPORT in os.environ:
        return None
    outcomes, said = _outcomes(pyfuncitem.session)
    phases = outcomes.get(pyfuncitem.nodeid)
    if phases is None:
        pytest.fail(f"the interpreter's process did not run this test:\n{said}", pytrace=False)
    for passed, text in phases:
        if not passed:
            pytest.fail(text, pytrace=False)
    return True


_Outcomes = dict[str, list[tuple[bool, str]]]
_KEY = pytest.StashKey[tuple[_Outcomes, str]]()


def _outcomes(session: pytest.Session) -> tuple[_Outcomes, str]:
    if _KEY not in session.stash:
        names = [item.nodeid for item in session.items if HERE in item.path.parents]
        report = session.config._tmp_path_factory.mktemp("interpreted") / "outcomes"  # type: ignore[attr-defined]
        report.touch()
        environment = os.environ | {"TRITON_INTERPRET": "1", REPORT: str(report), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *("-O" for _ in range(sys.flags.optimize)), "-m", "pytest", "-q", *names]
        done = subprocess.run(
            command, cwd=session.config.rootpath, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        found: _Outcomes = {}
        for line in report.read_text().splitlines():
            name, passed, text = json.loads(line)
            found.setdefault(name, []).append((passed, text))
        session.stash[_KEY] = (found, done.stdout.decode(errors="replace"))
    return session.stash[_KEY]
