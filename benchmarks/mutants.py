"""Do the tests notice when a line is wrong? Change single places of core files, and run the tests beside them.

    make mutants [MUTANTS=12] [SEED=7]

cosmic-ray makes every mutation of a file; of each area so many are drawn by the seed. It runs in an environment of its
own (`--cosmic-ray`), because it wants another SQLAlchemy than Prefect. A mutation counts as killed if the tests named
beside its file fail, or take four times as long as without it; what cannot be imported at all is no mutation and is
left out. Exit code 1 if fewer than 85 % are killed, or a survivor is neither equivalent nor cosmetic.

`mutants_judged.toml` holds what a person found about survivors; the page shows it beside each, and says which were
not judged yet. An entry is found by the file and the line before and after, so it holds wherever the line moves.

Left out, since no test could or should tell them apart:
- `==` for `is`, and `!=` for `is not`. The linter refuses them with None (E711), and members of an enumeration are one
  object each. The other way round is counted: two equal texts can be two objects.
- The `*` in a signature is no product: `/` there changes only how the function may be called, which mypy checks.

    --write    put what is printed into docs/proofs/mutants.md
"""

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.mutants_page import Mutant, is_good, judgements, report
from benchmarks.provenance import PROJECT, commit

PAGE = PROJECT / "docs" / "proofs" / "mutants.md"
UNIT = "tests/unit"
_CONTRACTS, _LAUNCH, _PACKING, _EVALS = (
    f"{UNIT}/containers/{folder}" for folder in ("contracts", "launch", "packing", "evals")
)
_STORE = f"{UNIT}/tasks/store"
# Says the default and the bounds of every key.
_KEYS_PAGE = f"{UNIT}/flows/cli/test_keys_command.py::test_the_page_is_what_the_code_says"
_PENALTY = (
    f"{UNIT}/containers/stages/test_reward_model_options.py"
    "::test_the_penalty_is_in_the_training_loss_and_not_in_the_one_that_chooses_the_checkpoint"
)
# Area → file → the tests beside it: those that are about what the file promises, and fast.
AREAS: Mapping[str, Mapping[str, str]] = {
    "contracts": {
        "containers/contracts/schedule.py": f"{_CONTRACTS}/test_batch_on_every_profile.py",
        "containers/contracts/hardware.py": f"{_CONTRACTS}/test_gpu_profile.py "
        f"{_CONTRACTS}/test_batch_on_every_profile.py {_CONTRACTS}/test_stage_key.py {_KEYS_PAGE}",
        "containers/contracts/stop_grace.py": f"{_CONTRACTS}/test_stop_grace.py",
        "containers/contracts/variables.py": f"{_CONTRACTS}/test_gpu_profile.py",
    },
    "launch": {
        "containers/launch/arguments.py": f"{_LAUNCH}/test_arguments.py",
        "containers/launch/environment.py": f"{_LAUNCH}/test_environment.py",
        "containers/launch/ladder.py": f"{_LAUNCH}/test_ladder.py",
        "containers/launch/failures/classify.py": f"{_LAUNCH}/failures",
        "containers/launch/host_limits.py": f"{_LAUNCH}/test_host_limits.py {_LAUNCH}/test_memory_limit.py",
    },
    "store": {
        "tasks/store/contents.py": f"{_STORE}/test_store.py {_STORE}/test_store_of_many_runs.py "
        f"{UNIT}/flows/cli/test_cache_command.py",
        "tasks/store/decisions.py": f"{_STORE}/test_approval_store.py",
        "tasks/store/events.py": f"{_STORE}/test_event_feed.py",
        "tasks/store/history.py": f"{_STORE}/test_why_it_runs.py {_STORE}/test_store.py "
        f"{_STORE}/test_store_of_many_runs.py",
    },
    "keys": {
        "containers/contracts/digests.py": f"{_CONTRACTS}/test_artifact_digest.py {_CONTRACTS}/test_verify_artifact.py "
        f"{_CONTRACTS}/test_file_limits.py",
        "containers/contracts/identity.py": f"{_CONTRACTS}/test_stage_key.py "
        f"{_CONTRACTS}/test_batch_on_every_profile.py",
        "containers/contracts/programs.py": f"{_CONTRACTS}/test_programs.py",
    },
    "packing": {
        "containers/packing/logps.py": f"{_PACKING}/test_packed_logps.py",
        "containers/packing/scoring.py": f"{_PACKING}/test_packed_scoring.py",
        "containers/packing/trees.py": f"{_PACKING}/test_packed_scoring.py {_PACKING}/test_packed_logps.py",
        "containers/packing_traits.py": f"{_PACKING}/test_packing_traits.py",
    },
    "losses": {
        "containers/algorithms/reward_model.py": f"{UNIT}/containers/algorithms/test_packed_training.py {_PENALTY}",
        "containers/algorithms/policy_step.py": f"{UNIT}/containers/algorithms/test_policy_step.py",
        "containers/losses/advantages.py": f"{UNIT}/containers/losses/test_advantages.py",
        "containers/losses/ratios.py": f"{UNIT}/containers/losses/test_objectives.py",
        "containers/losses/clipped.py": f"{UNIT}/containers/losses/test_objectives.py",
        "containers/losses/weights.py": f"{UNIT}/containers/losses/test_objectives.py",
    },
    "statistics": {
        "containers/evals/statistics.py": f"{_EVALS}/test_statistics.py {_EVALS}/test_paired_statistics.py",
        "containers/evals/length_bias.py": f"{_EVALS}/test_certificate_length.py",
        "containers/evals/length_effects.py": f"{_EVALS}/test_length_effects.py",
        "containers/evals/suites/figures.py": f"{_EVALS}/suites/test_suite_figures.py "
        f"{_EVALS}/suites/test_suite_properties.py {_EVALS}/suites/test_reward_bench.py "
        f"{_EVALS}/suites/test_own_suites.py {_EVALS}/suites/test_repeated_prompts.py",
    },
    "gates": {
        "tasks/config/gates.py": f"{UNIT}/tasks/config/test_gates.py {_KEYS_PAGE}",
        "tasks/config/gate_rules.py": f"{UNIT}/tasks/config/test_gates.py {UNIT}/tasks/config/test_gate_rules.py",
        "tasks/config/retrain.py": f"{UNIT}/tasks/config/test_champion_rules.py {_KEYS_PAGE}",
        "tasks/decide_champion.py": f"{UNIT}/tasks/champions/test_who_becomes_champion.py",
        "containers/report/verdict.py": f"{UNIT}/containers/report/test_run_verdict.py",
    },
}
# The others are of one kind with these, or change annotations and signatures.
OPERATORS = (
    "core/ReplaceComparisonOperator",
    "core/ReplaceBinaryOperator_Add_Sub",
    "core/ReplaceBinaryOperator_Sub_Add",
    "core/ReplaceBinaryOperator_Mul_Div",
    "core/ReplaceBinaryOperator_Div_Mul",
    "core/ReplaceBinaryOperator_FloorDiv_Mul",
    "core/ReplaceBinaryOperator_Mod_Mul",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/AddNot",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
    "core/RemoveDecorator",
    "core/ReplaceUnaryOperator_Delete_Not",
)
_EQUAL_FOR_SAME = ("_Is_Eq", "_IsNot_NotEq")
_STILLBORN = ("SyntaxError", "ERROR collecting", "ImportError while loading")
_LONGER_BY, _AT_LEAST_S = 4.0, 20.0


class Files:
    """A copy of the checkout in which files are changed.

    Args:
        cosmic_ray: the program.
        folder: a new folder for the copy.
    """

    def __init__(self, cosmic_ray: Path, folder: Path) -> None:
        self._cosmic_ray = cosmic_ray
        self._copy = folder / "copy"
        self._session = folder / "session"
        subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(self._copy)], check=True)  # noqa: S607

    def mutants(self, area: str, drawn: Mapping[str, int], *, seed: int) -> Iterator[Mutant]:
        """So many mutants of each of these files of an area."""
        for file, count in drawn.items():
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *AREAS[area][file].split()]
            took_s = self._time(command)
            config = self._session.with_suffix(".toml")
            config.write_text(
                f'[cosmic-ray]\nmodule-path = "{file}"\nexcluded-modules = []\n'
                f"timeout = {max(_AT_LEAST_S, _LONGER_BY * took_s):.0f}.0\n"
                f'test-command = "{" ".join(command)}"\n[cosmic-ray.distributor]\nname = "local"\n'
            )
            database = self._session.with_suffix(".sqlite")
            database.unlink(missing_ok=True)
            self._run("init", config, database)
            draw(database, count, source=(self._copy / file).read_text(encoding="utf-8"), seed=seed)
            self._run("exec", config, database)
            yield from outcomes(area, self._run("dump", database).splitlines())

    def _time(self, command: list[str]) -> float:
        began = time.monotonic()
        ended = subprocess.run(
            command, cwd=self._copy, env=self._environment(), capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise SystemExit(f"{' '.join(command)} fails without a mutation:\n{ended.stdout[-3000:]}")
        return time.monotonic() - began

    def _run(self, *words: str | Path) -> str:
        command = [str(self._cosmic_ray), *map(str, words)]
        return subprocess.run(
            command, cwd=self._copy, env=self._environment(), capture_output=True, text=True, check=True
        ).stdout

    def _environment(self) -> dict[str, str]:
        # The tests find the copy before the installed project; a file that is changed twice in a second keeps no code.
        return {**os.environ, "PYTHONPATH": str(self._copy), "PYTHONDONTWRITEBYTECODE": "1"}


def draw(database: Path, count: int, *, source: str, seed: int) -> None:
    """Leave so many mutations of a session, drawn among those of `OPERATORS`."""
    places = "SELECT job_id, operator_name, start_pos_row, start_pos_col FROM mutation_specs ORDER BY rowid"
    with sqlite3.connect(database) as session:
        known = session.execute(places).fetchall()
        wanted = [job for job, operator, *place in known if is_counted(operator, source, *place)]
        kept = set(random.Random(seed).sample(wanted, min(count, len(wanted))))  # noqa: S311
        for job, *_ in known:
            if job not in kept:
                session.execute("DELETE FROM mutation_specs WHERE job_id = ?", (job,))
                session.execute("DELETE FROM work_items WHERE job_id = ?", (job,))
    session.close()


def is_counted(operator: str, source: str, line: int, column: int) -> bool:
    """Whether a mutation is one that a test could tell apart; the place counts lines from 1, columns from 0."""
    if not operator.startswith(OPERATORS) or operator.endswith(_EQUAL_FOR_SAME):
        return False
    return not (operator.startswith("core/ReplaceBinaryOperator_Mul") and _is_in_a_signature(source, line, column))


def _is_in_a_signature(source: str, line: int, column: int) -> bool:
    text = source.splitlines()[line - 1]
    before, after = text[:column].rstrip(), text[column + 1 :].lstrip()
    return text[column : column + 1] == "*" and (not before or before[-1] in "(,") and (not after or after[0] == ",")


def outcomes(area: str, lines: Iterable[str]) -> Iterator[Mutant]:
    """The mutants of a session as `cosmic-ray dump` prints them."""
    for line in lines:
        job, result = json.loads(line)
        (place,) = job["mutations"]
        before, after = _lines(str(result.get("diff")))
        yield Mutant(
            area=area,
            file=place["module_path"],
            line=place["start_pos"][0],
            function=place["definition_name"] or "",
            operator=place["operator_name"].removeprefix("core/"),
            outcome=_outcome(result),
            before=before,
            after=after,
        )


def _outcome(result: Mapping[str, Any]) -> str:
    output = str(result.get("output"))
    if any(sign in output for sign in _STILLBORN) and "assert" not in output:
        return "stillborn"
    return str(result["test_outcome"])


def _lines(diff: str) -> tuple[str, str]:
    """The changed line before and after."""
    changed = [line for line in diff.splitlines() if line[:1] in ("-", "+") and line[:3] not in ("---", "+++")]
    before, after = ("".join(line[1:] for line in changed if line[0] == sign) for sign in "-+")
    return " ".join(before.split()), " ".join(after.split())


def shares(area: str, total: int) -> dict[str, int]:
    """How many mutants each file of an area gives: by its lines, at least one."""
    lines = {file: len((PROJECT / file).read_text(encoding="utf-8").splitlines()) for file in AREAS[area]}
    return {file: max(1, round(total * count / sum(lines.values()))) for file, count in lines.items()}


def main() -> int:
    """Print the page; 1 if too few were killed, or a survivor is neither equivalent nor cosmetic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cosmic-ray", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--mutants", type=int, default=12, help="of each area; 12 unless given")
    parser.add_argument("--area", choices=tuple(AREAS), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    measured = commit()

    def of_area(area: str) -> list[Mutant]:
        with tempfile.TemporaryDirectory() as folder:
            files = Files(given.cosmic_ray.absolute(), Path(folder))
            found = list(files.mutants(area, shares(area, given.mutants), seed=given.seed))
        survived = sum(mutant.outcome == "survived" for mutant in found)
        print(f"{area}: {survived} of {len(found)} survived", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2 * 2)) as pool:
        mutants = [mutant for found in pool.map(of_area, given.area or AREAS) for mutant in found]
    known = judgements()
    areas = given.area or tuple(AREAS)
    command = f"make mutants MUTANTS={given.mutants} SEED={given.seed}"
    page = report(mutants, measured, command=command, areas=areas, known=known)
    print(page)
    if given.write:
        PAGE.write_text(page, encoding="utf-8")
    return 0 if is_good(mutants, known) else 1


if __name__ == "__main__":
    sys.exit(main())
