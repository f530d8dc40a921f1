"""Breaks the library in known ways, one at a time, and shows the test that notices: ``make mutants``.

Each mutant is a file, a text that stands in it exactly once, what takes its place, and where its test is looked for.
The mutant is made in a copy of the repository, so that a run that is stopped leaves nothing behind. A mutant that
survives ends the run with exit code 1: it is a hole in the tests.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pdips"
LIMIT_SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """A fault that tests must notice.

    Parameters
    ----------
    what : str
        What it breaks.
    file : str
        Below ``pdips/``.
    old, new : str
        The text, and what takes its place.
    tests : str
        Arguments of pytest.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str


CONTRACT = "tests/contract/test_contract.py"
CURATOR = "tests/privacy/test_curator.py"

MUTANTS = [
    # prices and noise, for all mechanisms
    Mutant(
        "a person's cap doesn't count",
        "privacy/sensitivity.py",
        "cap = schema.records.max_per_person",
        "cap = 1",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "replacing a record changes one count",
        "privacy/sensitivity.py",
        'places = 2 if neighbours == "replace-one" else 1',
        "places = 1",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "the cap of a squared sensitivity isn't squared",
        "privacy/sensitivity.py",
        "l2_squared=cap**2 * squared",
        "l2_squared=cap * squared",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "repetitions of a step share no price",
        "privacy/plan.py",
        "return self.sensitivity.l1 * self.times / self.price",
        "return self.sensitivity.l1 / self.price",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "Gaussian noise of twice its rho",
        "privacy/plan.py",
        "return self.sensitivity.l2_squared * self.times / (2 * self.price)",
        "return self.sensitivity.l2_squared * self.times / (4 * self.price)",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "rounds aren't added up",
        "privacy/plan.py",
        "return self.repeats * sum((step.price for step in self.steps), Fraction(0))",
        "return sum((step.price for step in self.steps), Fraction(0))",
        f"{CURATOR} -k add_up",
    ),
    Mutant(
        "a step is asked out of order",
        "privacy/curator.py",
        "        if step != due:",
        "        if step not in self._plan.steps:",
        f"{CURATOR} -k refused",
    ),
    Mutant(
        "a step is asked for another law",
        "privacy/curator.py",
        "        if step.law not in laws:",
        "        if step.law not in laws and not laws:",
        f"{CURATOR} -k refused",
    ),
    Mutant(
        "more is asked than is priced",
        "privacy/curator.py",
        "        if self.finished:\n            raise PlanError",
        "        if self.finished and step.times > 1:\n            raise PlanError",
        f"{CURATOR} -k refused",
    ),
    Mutant(
        "the number of records is told under add-remove",
        "privacy/curator.py",
        '        if not self._plan.n_public:\n            raise PlanError("the number of records',
        '        if self._plan is None:\n            raise PlanError("the number of records',
        f"{CURATOR} -k protected",
    ),
    Mutant(
        "noise is left out",
        "privacy/curator.py",
        "noisy = true + noise.reshape(n_runs, len(true))",
        "noisy = true + 0 * noise.reshape(n_runs, len(true))",
        f"{CURATOR} -k 'law_of_releases or rounds'",
    ),
    Mutant(
        "half the noise is drawn",
        "privacy/curator.py",
        "drawn = discrete_laplace(step.scale, size, bits)",
        "drawn = discrete_laplace(step.scale / 2, size, bits)",
        "tests/audit/test_audit.py -k 'laplace and twice or laplace-sanitizer'",
    ),
    Mutant(
        "choices are twice as sharp as their price",
        "privacy/curator.py",
        "return exponential_mechanism(scores(self._table), 1 / step.scale, self._bits)",
        "return exponential_mechanism(scores(self._table), 2 / step.scale, self._bits)",
        f"{CURATOR} -k law_of_releases",
    ),
    Mutant(
        "an exact law sees choices less sharp than they are",
        "privacy/replay.py",
        "choice_log_probabilities(scores(self._table), 1 / step.scale)",
        "choice_log_probabilities(scores(self._table), 1 / (2 * step.scale))",
        f"{CURATOR} -k exact_law",
    ),
    Mutant(
        "the ledger is charged after the draw",
        "mechanism.py",
        '        if ledger is not None:\n            with clock.step("charging the ledger"):',
        "        self.synthesize(plan, Drawing(plan, table, RandomBits(rng)), RandomBits(rng).generator())\n"
        '        if ledger is not None:\n            with clock.step("charging the ledger"):',
        f"{CURATOR} -k charges_first",
    ),
    Mutant(
        "a seeded release isn't marked",
        "mechanism.py",
        "        if bits.reproducible:",
        "        if bits.reproducible and ledger is not None:",
        f"{CONTRACT} -k states_what_ran",
    ),
    Mutant(
        "the statement says nothing of records without a person",
        "privacy/statement.py",
        "    elif records:",
        "    elif public and not records:",
        f"{CONTRACT} -k statement",
    ),
]


def main() -> None:
    """Apply the mutants whose names have a word given on the command line, or all, and say what became of each."""
    wanted = [each for each in MUTANTS if all(word in f"{each.what} {each.file}" for word in sys.argv[1:])]
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(Path(folder) / "pdips")
        for mutant in wanted:
            start = time.perf_counter()
            killer = _killer(mutant, copy)
            survived += [] if killer else [mutant]
            fate = f"killed by {killer}" if killer else "SURVIVED"
            print(f"{mutant.file}: {mutant.what}: {fate} ({time.perf_counter() - start:.0f} s)", flush=True)  # noqa: T201
    print(f"{len(wanted)} mutants, {len(survived)} survived")  # noqa: T201
    sys.exit(bool(survived))


def _copied(target: Path) -> Path:
    """Copy what git knows of, so that tests run in the copy as they do here."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def _killer(mutant: Mutant, copy: Path) -> str | None:
    """Return the first test that fails on a mutant, or None if all pass.

    Raises
    ------
    SystemExit
        If the text doesn't stand in the file exactly once, or no test ran.
    """
    file = copy / "pdips" / mutant.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(mutant.old) != 1:
        sys.exit(f"{mutant.file}: {mutant.what}: the text stands there {whole.count(mutant.old)} times")
    file.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    command = f'"{sys.executable}" -m pytest -x -q -p no:cacheprovider -m "not clone and not browser" {mutant.tests}'
    try:
        found = subprocess.run(
            command, shell=True, cwd=copy, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    finally:
        file.write_text(whole, encoding="utf-8")
    if found.returncode not in (0, 1):
        sys.exit(f"{mutant.what}: no test ran\n{found.stdout[-2000:]}{found.stderr[-2000:]}")
    failed = re.search(r"^FAILED (\S+)", found.stdout, re.MULTILINE)
    return failed[1] if failed else None


if __name__ == "__main__":
    main()
