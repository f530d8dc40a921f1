"""Print the numbers of ``docs/results/benchmarks.md``: imports, noise,
consistency, releases from file to files, bounds.
"""

import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

from pdips.margins.consistency import consistent
from pdips.privacy.noise import RandomBits, discrete_gaussian, discrete_laplace

EXAMPLES = Path(__file__).parents[1] / "examples"
REPEATS = 5
ORDER = (
    "income",
    "education",
    "race",
    "marital_status",
    "enrolled",
    "class_of_worker",
    "hispanic",
    "foreign_born",
)


def row(what: str, found: str, goal: str = "") -> None:
    """Print one line of the table."""
    print(f"| {what} | {found} | {goal} |", flush=True)


def fastest(job: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the least wall time of a job in seconds: the one with the least
    disturbance.
    """
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


def run(*words: str) -> tuple[float, float]:
    """Run a command of its own; return wall seconds and the largest resident size in
    MiB.
    """
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    return time.perf_counter() - start, float(done.stdout)


def commands(*words: str) -> tuple[float, float]:
    """Return the median wall time and the largest memory of a command over several
    runs.
    """
    found = [run(*words) for _ in range(REPEATS)]
    return statistics.median(seconds for seconds, _ in found), max(
        memory for _, memory in found
    )


def imports() -> None:
    """Measure what a user waits for before anything happens."""
    row(
        "`import pdips`",
        f"{commands(sys.executable, '-c', 'import pdips')[0]:.2f} s",
        "< 0.7 s",
    )
    row(
        "`pdips --help`",
        f"{commands(sys.executable, '-m', 'pdips', '--help')[0]:.2f} s",
        "< 1 s",
    )


def noise() -> None:
    """Measure exact draws a second on one core, and OpenDP's."""
    bits, n = RandomBits(), 5_000_000
    for scale in (Fraction(2), Fraction(80, 9), Fraction(100), Fraction(10**6)):
        discrete_laplace(scale, 1, bits)
        seconds = fastest(lambda scale=scale: discrete_laplace(scale, n, bits))  # type: ignore[misc]
        row(
            f"discrete Laplace, scale {scale}",
            f"{n / seconds / 1e6:.1f} million draws/s",
            ">= 5 million/s",
        )
    seconds = fastest(lambda: discrete_gaussian(Fraction(100), n // 5, bits))
    row(
        "discrete Gaussian, variance 100",
        f"{n / 5 / seconds / 1e6:.1f} million draws/s",
    )
    row(
        "OpenDP discrete Laplace, scale 2", f"{opendp_rate() / 1e6:.2f} million draws/s"
    )


def opendp_rate() -> float:
    """Return OpenDP's draws a second, a vector at a time, which is its quickest way."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    n = 200_000
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    measure = dp.m.make_laplace(*space, scale=2.0)
    zeros = [0] * n
    return n / fastest(lambda: measure(zeros), repeats=3)


def consistency() -> None:
    """Measure generalised least squares on two million nodes, equal and unequal
    fan-out.
    """
    rng = np.random.default_rng(0)
    equal = [np.repeat(np.arange(126**depth), 126) for depth in range(3)]
    unequal, n_above = [], 1
    for largest in (100, 200, 400):
        children = rng.integers(1, largest, n_above)
        children[0] = largest
        unequal.append(np.repeat(np.arange(n_above), children))
        n_above = len(unequal[-1])
    for name, parents in (
        ("126 children a node", equal),
        ("1 to 399 children a node", unequal),
    ):
        sizes = [1, *map(len, parents)]
        observed = [rng.normal(0, 10, size) for size in sizes]
        variances = [rng.uniform(1, 9, size) for size in sizes]
        seconds = fastest(partial(consistent, parents, observed, variances))
        row(
            f"consistency, {sum(sizes):,} nodes, {name}",
            f"{seconds:.2f} s",
            "<= 0.5 s for 2 million",
        )


def releases() -> None:
    """Measure whole releases of the example survey, pages included, five sets at
    epsilon 1.
    """
    table = [
        "synthesize",
        str(EXAMPLES / "youth.parquet"),
        "--schema",
        str(EXAMPLES / "youth.toml"),
    ]
    jobs = {
        "STEPS, L = 3, elected": ["steps", "--option", "layers=3"],
        "STEPS, L = 5, elected": ["steps", "--option", "layers=5"],
        "STEPS, L = 5, order given": [
            "steps",
            "--option",
            f"order={','.join(ORDER[:5])}",
        ],
        "margins": ["margins"],
        "STEPS, down to all cells, elected": ["steps"],
        "STEPS, L = 3, a tree for each set": [
            "steps",
            "--option",
            "layers=3",
            "--option",
            "split=per-set",
        ],
        "STEPS, L = 15, elected": ["steps", "--option", "layers=15"],
        "Laplace sanitizer": ["laplace-sanitizer"],
    }
    for name, words in jobs.items():
        with tempfile.TemporaryDirectory() as folder:
            common = [
                "--epsilon",
                "1",
                "--sets",
                "5",
                "--out",
                f"{folder}/out",
                "--overwrite",
            ]
            seconds, memory = commands(
                sys.executable, "-m", "pdips", *table, "--mechanism", *words, *common
            )
        goal = (
            ("<= 4 s, <= 1024 MiB")
            if "L = 3, e" in name or "L = 5" in name or "sanitizer" in name
            else ""
        )
        row(f"{name}", f"{seconds:.1f} s, {memory:.0f} MiB", goal)


def trees() -> None:
    """Measure releases on two million cells, each in a process of its own."""
    from benchmarks.trees import SHAPES

    for name in SHAPES:
        command = [sys.executable, "-m", "benchmarks.trees", name]
        found = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.strip()
        row(f"2,097,152 cells, five sets: {name}", found, "<= 6 s, <= 1024 MiB")


def bounds() -> None:
    """Measure bounds of log-likelihoods over posterior draws, in a process of its
    own.
    """
    command = [sys.executable, "-m", "benchmarks.bounds"]
    found = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.strip()
    row(
        "bounds, 10^6 records x 1,000 draws, beta model with weights and centre",
        found,
        "<= 5 s, < 1024 MiB",
    )


def posteriors() -> None:
    """Measure draws from a censored posterior by NUTS."""
    from benchmarks.posterior import rows

    for what, found, goal in rows():
        row(what, found, goal)


def main() -> None:
    """Print all measurements as one table."""
    print(
        f"Python {platform.python_version()}, {platform.machine()}, "
        f"{date.today().isoformat()}\n"
    )
    print("| what | measured | goal |\n| --- | --- | --- |")
    for part in (imports, noise, consistency, trees, releases, bounds, posteriors):
        part()


if __name__ == "__main__":
    main()
