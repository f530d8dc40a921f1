"""An outsider's tool on all mechanisms: dp-recorder records each draw of noise on one
table and plays it back on a neighbour.

    git clone https://github.com/ObliviousAI/dp-recorder
    pip install --no-deps dp-accounting tqdm absl-py mpmath attrs dm-tree seaborn
    pip install --no-deps graphviz
    PYTHONPATH=dp-recorder/src python -m benchmarks.recorder

It needs a clone of the tool and what that imports, neither of which the project depends
on. The places where noise is drawn are instrumented, and nothing else: what is added to
counts, exponential mechanisms, and draws from distributions. The tool then finds
questions that differ although all earlier answers were the same, numbers that move by
more than is declared, and synthetic sets that differ. It trusts the samplers: that
noise has the declared scale is not among what it looks at.

``docs/audit.md`` quotes what this prints.
"""

import argparse
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from dp_recorder.auditing import audit_primitives as tool

from benchmarks.path_classes import BY_KIND, PAIRS, PathClass, path_classes
from pdips.arrays import BoolArray, IntArray
from pdips.audit.neighbour_pairs import Pair
from pdips.audit.path_loss import least_squares_cost
from pdips.audit.random_pairs import random_pair
from pdips.errors import DataError, InputError, RefusedError
from pdips.fields.margins import Margins
from pdips.margins.residuals import ResidualDesign
from pdips.mechanism import Mechanism
from pdips.privacy import curator as curators
from pdips.privacy.curator import Distribution, Drawing
from pdips.privacy.noise import (
    UNAVAILABLE,
    RandomBits,
    discrete_gaussian,
    exponential_mechanism,
)
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity

SEED = 3
EPSILON = 8
# Chains and compilation take seconds a pair
SLOW = {"scores", "modips"}


# ---- how far two exact answers are apart, in parts of what the noise allows ----


def declared(step: Step) -> float:
    """Return what one question may lose: an epsilon, or a distance in standard
    deviations.
    """
    each = float(step.price) / step.times
    return math.sqrt(2 * each) if step.law == "gaussian" else each


def noise_metric(step: Step) -> Callable[[IntArray, IntArray], float]:
    """Return the distance of two vectors of counts, in scales or standard deviations
    of the declared noise, of what is shown of them.
    """
    image = step.image

    def distance(one: IntArray, other: IntArray) -> float:
        moved = other - one
        if image is None:
            parameters = np.full(len(moved), float(step.parameter))
        else:
            parameters = np.array(
                [float(image.scale(step, weight)) for weight in image.weights.tolist()]
            )
        if step.law == "laplace":
            return float((np.abs(moved) / parameters).sum())
        if image is None:
            return math.sqrt(float((moved**2 / parameters).sum()))
        response = image.show(np.eye(len(moved), dtype=np.int64)).T
        cost = least_squares_cost(
            response.astype(np.float64), parameters, response @ moved
        )
        return math.sqrt(2 * cost)

    return distance


def score_metric(unit: float) -> Callable[[IntArray, IntArray], float]:
    """Return how far scores of two candidates move apart, all rows together."""

    def distance(one: IntArray, other: IntArray) -> float:
        moved = np.where(one == UNAVAILABLE, 0, other - one)
        widths = [
            int(row[open_].max() - row[open_].min())
            for row, open_ in zip(moved, one != UNAVAILABLE, strict=True)
        ]
        return unit * sum(widths)

    return distance


def law_metric(step: Step) -> Callable[[Any, Any], float]:
    """Return the distance of two laws: the range of their log ratios, or the largest
    one.
    """

    def distance(one: Any, other: Any) -> float:
        ratios = np.asarray(other) - np.asarray(one)
        if step.law == "bounded-range":
            return float(ratios.max() - ratios.min())
        return float(np.abs(ratios).max())

    return distance


# ---- the instruments ----


@dataclass
class Instruments:
    """What stands in the places where noise is drawn, and counts what passes."""

    n_calls: int = 0
    n_unseen: int = 0  # Draws of laws that can't be spelt out

    def ask(
        self,
        step: Step,
        exact: Any,
        metric: Callable[[Any, Any], float],
        draw: Callable[[], Any],
    ) -> Any:
        """Draw under the tool's eyes."""
        self.n_calls += 1

        def drawn(exact: Any, sensitivity: float, question: str) -> Any:
            return draw()

        watched = tool.audit_spec(
            kind=step.law,
            input_arg="exact",
            sensitivity_arg="sensitivity",
            metric_fn=metric,
        )(drawn)
        question = repr(step.facts())
        return watched(exact=exact, sensitivity=declared(step), question=question)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put them into place."""
        add, draw = curators.noisy_counts, Drawing._draw

        def noisy_counts(
            counts: IntArray,
            possible: BoolArray | None,
            step: Step,
            bits: RandomBits,
            n_runs: int = 1,
        ) -> IntArray:
            kept = counts if possible is None else counts[possible]
            tool.ensure_equality(possible=None if possible is None else possible.copy())

            def added() -> IntArray:
                return add(counts, possible, step, bits, n_runs)

            found: IntArray = self.ask(step, kept, noise_metric(step), added)
            return found

        def chosen(curator: Drawing, step: Step, scores: Any) -> Any:
            exact = np.asarray(scores(curator._table))
            tool.ensure_equality(available=exact != UNAVAILABLE)
            unit = 1 / step.scale
            return self.ask(
                step,
                exact,
                score_metric(float(unit)),
                lambda: exponential_mechanism(exact, unit, curator._bits),
            )

        def from_law(curator: Drawing, step: Step, distribution: Any) -> Any:
            law: Distribution = distribution(curator._table)
            try:
                spelt = law.log_probabilities()
            except InputError:
                self.n_unseen += 1
                spelt = {(): 0.0}
            tool.ensure_equality(outcomes=sorted(spelt))
            logs = np.array([spelt[key] for key in sorted(spelt)])
            return self.ask(
                step, logs, law_metric(step), lambda: draw(curator, step, lambda _: law)
            )

        with (
            patch.object(curators, "noisy_counts", noisy_counts),
            patch.object(Drawing, "_choose", chosen),
            patch.object(Drawing, "_draw", from_law),
        ):
            yield


def published(drawn: Any) -> str:
    """Return a digest of the sets and tables that a release would publish."""
    digest = hashlib.sha256()
    frames = [*drawn.sets, *drawn.tables.values(), *drawn.statistics.values()]
    for frame in frames:
        if isinstance(frame, pd.DataFrame):
            digest.update(repr([*frame.dtypes.items()]).encode())
            digest.update(frame.to_csv().encode())
    return digest.hexdigest()


class Recorded(Drawing):
    """Draws as a release does; what follows answers has randomness of its own, the same
    whether noise is drawn by bits or played back.
    """

    @cached_property
    def generator(self) -> np.random.Generator:
        """Randomness of post-processing."""
        return np.random.default_rng([SEED, 1])


def found_by_tool(made: Mechanism, plan: Plan, pair: Pair) -> tuple[Instruments, str]:
    """Record a release of one table, play it back on its neighbour; return what the
    tool says against it, empty for nothing.
    """
    instruments, auditor = Instruments(), tool.Auditor()

    def run(table: Any) -> None:
        curator = Recorded(plan, table, RandomBits(np.random.default_rng(SEED)))
        with auditor:
            measured = made.ask(plan, curator)
            rng = np.random.default_rng(SEED)
            drawn = made.draw(plan, measured, made.n_sets, rng, curator.facts)
            tool.ensure_equality(published=published(drawn))

    with instruments.installed():
        run(pair.first)
        auditor.set_replay()
        try:
            run(pair.second)
            auditor.validate_records()
        except (AssertionError, RuntimeError) as error:
            return instruments, str(error).splitlines()[0]
    if auditor._cursor != len(auditor.log):
        return instruments, "fewer questions on the neighbour"
    return instruments, ""


# ---- broken products, to see what the tool sees ----


@contextmanager
def _cap_forgotten() -> Iterator[None]:
    of_record = Sensitivity.of_record.__func__  # type: ignore[attr-defined]

    def forgetful(cls: Any, schema: Any, /, **moved: Any) -> Any:
        records = schema.records.model_copy(
            update={"max_per_person": 1, "person": None}
        )
        alone = schema.model_copy(update={"records": records})
        return of_record(cls, alone, **moved)

    with patch.object(Sensitivity, "of_record", classmethod(forgetful)):
        yield


@contextmanager
def _pairs_whole() -> Iterator[None]:
    def differs(self: ResidualDesign, margin: tuple[int, ...]) -> bool:
        return not self.whole and len(margin) == 1

    with patch.object(ResidualDesign, "differs", differs):
        yield


@contextmanager
def _exact_length() -> Iterator[None]:
    ask = Margins.ask
    draw = Margins.draw
    tables = []

    def remembering(self: Margins, plan: Plan, curator: Any) -> Any:
        tables.append(curator._table)
        return ask(self, plan, curator)

    def as_long(self: Margins, *given: Any) -> Any:
        drawn = draw(self, *given)
        n_records = tables[-1].n_records
        return replace(drawn, sets=[made.head(n_records) for made in drawn.sets])

    with (
        patch.object(Margins, "ask", remembering),
        patch.object(Margins, "draw", as_long),
    ):
        yield


@contextmanager
def _quarter_variance() -> Iterator[None]:
    def quieter(variance: Any, n: int, bits: RandomBits) -> IntArray:
        return discrete_gaussian(variance / 4, n, bits)

    with patch.object(curators, "discrete_gaussian", quieter):
        yield


TWINS: dict[str, Callable[[], Any]] = {
    "a person's cap is forgotten": _cap_forgotten,
    "pairs are shown whole at the price of residuals": _pairs_whole,
    "sets are exactly as long as the table (add-remove)": _exact_length,
    "the sampler draws a quarter of the variance it is told": _quarter_variance,
}


# ---- all classes ----


@dataclass
class Tally:
    """What the tool said of one mechanism."""

    n_pairs: int = 0
    n_calls: int = 0
    n_unseen: int = 0
    n_refused: int = 0
    findings: list[str] = field(default_factory=list)

    def try_class(self, path_class: PathClass, n_pairs: int) -> None:
        """Try some pairs of a class at each cap and relation."""
        caps = path_class.caps[-1:] if path_class.mechanism in SLOW else path_class.caps
        for relation in path_class.relations:
            made = path_class.build(relation, EPSILON)
            for cap in caps:
                for number in range(n_pairs):
                    rng = np.random.default_rng([SEED, cap, number])
                    schema = path_class.schema(cap, rng)
                    far = number % 2 == 0
                    try:
                        plan = made.plan(schema)
                        pair = random_pair(schema, relation, rng, far=far)
                        instruments, said = found_by_tool(made, plan, pair)
                    except (InputError, DataError, RefusedError):
                        self.n_refused += 1
                        continue
                    self.n_pairs += 1
                    self.n_calls += instruments.n_calls
                    self.n_unseen += instruments.n_unseen
                    if said:
                        self.findings.append(f"{path_class}, {relation}: {said}")


def main() -> None:
    """Try all mechanisms, then the broken products, and print what the tool said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2, help="at each cap and relation")
    parser.add_argument("--mechanism", help="this one alone")
    asked = parser.parse_args()
    start = time.perf_counter()
    tallies: dict[str, Tally] = {}
    for path_class in path_classes():
        if asked.mechanism in (None, path_class.mechanism):
            tally = tallies.setdefault(path_class.mechanism, Tally())
            tally.try_class(path_class, asked.pairs)
    print("| mechanism | pairs | questions | not spelt out | findings |")
    print("| --- | ---: | ---: | ---: | --- |")
    for name, tally in sorted(tallies.items()):
        said = "; ".join(sorted({*tally.findings})) or "none"
        figures = f"{tally.n_pairs} | {tally.n_calls} | {tally.n_unseen}"
        print(f"| {name} | {figures} | {said} |")
    print("\n| broken product | the tool says |\n| --- | --- |")
    zcdp = next(
        each
        for each in path_classes()
        if each.mechanism == "margins" and each.settings == PAIRS | BY_KIND["zcdp"]
    )
    for name, twin in TWINS.items():
        broken = Tally()
        with ExitStack() as stack:
            stack.enter_context(twin())
            broken.try_class(zcdp, 2)
        said = broken.findings[0].partition(": ")[2] if broken.findings else "nothing"
        print(f"| {name} | {said} |")
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
