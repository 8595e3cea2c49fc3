"""Keep a seeded sample of a cosmic-ray session's mutants, and say afterwards how many were killed.

    python property_tests/mutation_sample.py keep SESSION.sqlite 300 --seed 1
    python property_tests/mutation_sample.py score SESSION.sqlite

All mutants of `kvcache/` and `engine/core/` take a day on two cores; a sample of 300 gives the score within some 2.5
points either way. `score` prints each survivor, with the line it changed.
"""

import argparse
import random
import sqlite3

TABLES = ("mutation_specs", "work_items", "work_results")


def keep(session: sqlite3.Connection, count: int, seed: int) -> None:
    """Drop all mutants but `count` of them."""
    # Job ids are random: draw by place in the source, so that the seed decides.
    order = "select job_id from mutation_specs order by module_path, operator_name, occurrence"
    jobs = [job for (job,) in session.execute(order)]
    dropped = set(jobs) - set(random.Random(seed).sample(jobs, min(count, len(jobs))))
    for table in TABLES:
        session.executemany(f"delete from {table} where job_id = ?", [(job,) for job in dropped])
    session.commit()
    print(f"{len(jobs) - len(dropped)} of {len(jobs)} mutants are kept")


def score(session: sqlite3.Connection) -> None:
    """How many were killed, and who survived."""
    results = session.execute(
        "select s.module_path, s.start_pos_row, s.operator_name, r.test_outcome, r.diff from work_results r"
        " join mutation_specs s on s.job_id = r.job_id order by 1, 2"
    ).fetchall()
    survivors = [row for row in results if "SURVIVED" in str(row[3]).upper()]
    for path, line, operator, _, diff in survivors:
        changed = [text for text in (diff or "").splitlines() if text[:1] in "+-" and text[:3] not in ("+++", "---")]
        print(f"{path}:{line} {operator.removeprefix('core/')}")
        print("".join(f"    {text}\n" for text in changed), end="")
    killed = len(results) - len(survivors)
    print(f"{killed} of {len(results)} killed ({killed / max(1, len(results)):.1%}), {len(survivors)} survive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "score"))
    parser.add_argument("session")
    parser.add_argument("count", nargs="?", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with sqlite3.connect(arguments.session) as session:
        if arguments.what == "keep":
            keep(session, arguments.count, arguments.seed)
        else:
            score(session)


if __name__ == "__main__":
    main()
