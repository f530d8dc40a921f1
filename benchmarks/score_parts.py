"""Where the error of regressions on confidential columns comes from, and what two
constants of the mechanism were chosen by:
``python -m benchmarks.score_parts [noise|constants] [--runs N]``.

Nothing is drawn from posteriors: intervals are those of the normal form at the mode.
Designs are those of :mod:`benchmarks.moments`.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.moments import Design, checked, designs, mechanism_of
from pdips.arrays import BoolArray, FloatArray
from pdips.privacy.curator import Clock, Drawing
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan
from pdips.scores import centred_sums, deformed, references
from pdips.scores.centred_sums import CentredSums
from pdips.scores.record_score import STEPS
from pdips.scores.references import usual_norm
from pdips.scores.scores import Scores
from pdips.scores.sums import Linearised

NORMAL_95 = 1.96
# Radii that are tried for the least error, over the usual norm of scores; a curvature
# is clipped nowhere
RADII = (0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5)
UNBOUNDED = 1e6
# Settings of the constants: those in use last
LEASTS = (1.2, 3.0, references.LEAST_OF_NUMBERS)
UNSURES = ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0), deformed.UNSURE)
PARTS_HEAD = (
    "design | records | coefficients | price | tables | error / sampling | clipping | "
    "noise on scores | on counts | on curvature | least error / sampling"
)
CONSTANTS_HEAD = (
    "LEAST_OF_NUMBERS | UNSURE | releases | covered | worst design | "
    "coefficient off, sd | scale off, sd | sd / sampling"
)


def asked(
    design: Design, mechanism: Scores, runs: int
) -> Iterator[tuple[Plan, CentredSums]]:
    """Yield the noisy sums of releases of tables that are drawn anew."""
    draw = design.tables()
    for seed in range(runs):
        table = draw()
        plan = mechanism.plan(table.schema)
        bits = RandomBits(np.random.default_rng(seed))
        answers = mechanism.ask(plan, Drawing(plan, table, bits, Clock(), None))
        assert isinstance(answers.sums, CentredSums)
        yield plan, answers.sums


def sampling_of(sums: CentredSums, near: Linearised) -> FloatArray:
    """Return the variances that estimates without privacy would have."""
    return np.diag(np.linalg.inv(near.information * sums.n_records))


def parts_of(sums: CentredSums) -> FloatArray:
    """Return variances of estimates over those without privacy, shape (4, parameters):
    of clipped scores without noise, and what noise adds to scores, counts and
    curvature.
    """
    near = sums.mode_of_last()
    back = np.linalg.pinv(near.slopes)
    deviation = sums.last.deviations["scores"]
    of_scores = deviation**2 * np.eye(len(near.place))
    covariances = [
        sums.sampling,
        of_scores,
        sums.score_noise - of_scores,
        near.noise - sums.score_noise,
    ]
    variances = [np.diag(back @ each @ back.T) for each in covariances]
    return np.array(variances) / sampling_of(sums, near)


def least_error(plan: Plan, sums: CentredSums) -> FloatArray:
    """Return the error over that of sampling, shape (parameters,), if all of the price
    were spent on the last scores, at the same reference, and curvature were known: at
    the radius that is best for the parameter in the middle.
    """
    whole = float(sum(step.price for step in plan.steps))
    [step] = [
        step
        for step in plan.steps
        if step.name.startswith("noisy centred scores")
        and step.name.endswith(str(len(sums.rounds)))
    ]
    share = float(step.price) / whole
    # variances fall with the price of Gaussian noise, with its square of Laplace noise
    quieter = share**2 if sums.laplace else share
    unit = step.standard_deviation / STEPS * np.sqrt(quieter)
    last = sums.last.centring
    usual = usual_norm(len(last.place), last.norm)
    ratios = []
    for radius in RADII:
        centring = replace(
            last, radius=radius * usual, curvature_radius=UNBOUNDED * usual
        )
        _, of_rows = sums.at_rows(centring)
        slope = sums.n_records * centring.matrix(sums.weights @ of_rows.curvature)
        weights = sums.means.weights[:, None] * sums.means.inner
        scores = of_rows.at_points
        flat = scores.reshape(-1, scores.shape[-1])
        covariance = (weights.reshape(-1, 1) * flat).T @ flat
        covariance += (unit * centring.radius) ** 2 * np.eye(len(slope))
        back = centring.whitening.T @ np.linalg.inv(slope)
        ratios.append(np.diag(back @ covariance @ back.T))
    near = sums.linearised(sums.last_reference)
    errors = np.sqrt(np.array(ratios) / sampling_of(sums, near))
    return np.asarray(errors[int(np.argmin(np.median(errors, axis=1)))])


def noise_row(design: Design, runs: int) -> str:
    """Return the row of where the error of a design comes from: medians over
    coefficients and releases.
    """
    k = len(design.coefficients)
    found = [*asked(design, mechanism_of(design.model, design.price), runs)]
    places = np.array([_coefficients(sums) for _, sums in found])
    parts = np.array([parts_of(sums) for _, sums in found])
    least = np.array([least_error(*each) for each in found])
    middle = np.median(parts, axis=0)[:, places[0]]
    whole = np.median(np.sqrt(parts.sum(axis=1)), axis=0)[places[0]]
    cells = [design.name, f"{design.n:,}", str(k), design.price, str(runs)]
    cells.append(f"{np.median(whole):.2f}")
    cells += [f"{value:.2f}" for value in np.median(middle, axis=1)]
    cells.append(f"{np.median(np.median(least, axis=0)[places[0]]):.2f}")
    return f"| {' | '.join(cells)} |"


def _coefficients(sums: CentredSums) -> FloatArray:
    """Return which of the unconstrained parameters are coefficients."""
    wide = sums.prior.deviation
    return np.asarray(np.arange(len(wide)) < len(wide) - _n_scales(sums))


def _n_scales(sums: CentredSums) -> int:
    return sum(variable.name == "sd" for variable in sums.space.model.free_RVs)


@dataclass(frozen=True)
class Judged:
    """What a release says of all parameters, the scale by its logarithm and last."""

    inside: BoolArray  # whether intervals hold the truth
    off: FloatArray  # from it, in standard deviations
    wide: FloatArray  # standard deviations, over those without privacy


def judged(sums: CentredSums, truth: FloatArray) -> Judged:
    """Compare a release with what the model estimates of ever more records."""
    near = sums.mode_of_last()
    precision = near.curvature + sums.prior.precision
    deviation = np.sqrt(np.diag(np.linalg.inv(precision)))
    off = (near.place - truth) / deviation
    wide = deviation / np.sqrt(sampling_of(sums, near))
    return Judged(np.abs(off) < NORMAL_95, off, wide)


def constants_rows(runs: int) -> Iterator[str]:
    """Yield a row for each setting of the two constants, over all designs whose errors
    are wrong.
    """
    wrong = [
        design
        for design in checked()
        if design.errors is not None or design.overdispersion
    ]
    kept: dict[Any, list[list[Judged]]] = {
        both: [] for both in product(LEASTS, UNSURES)
    }
    for design in wrong:
        mechanism = mechanism_of(design.model, design.price)
        truth = design.truth
        if design.model.family == "normal":
            truth = np.append(truth[:-1], np.log(truth[-1]))
        for least in LEASTS:
            with patch.object(references, "LEAST_OF_NUMBERS", least):
                found = [sums for _, sums in asked(design, mechanism, runs)]
            for unsure in UNSURES:
                with patch.object(centred_sums, "UNSURE", unsure):
                    for sums in found:
                        # the one thing that was worked out with the constant
                        vars(sums).pop("sampling", None)
                    kept[least, unsure].append([judged(each, truth) for each in found])
    k = len(wrong[0].coefficients)
    for (least, unsure), of_designs in kept.items():
        yield _constants_row(least, unsure, of_designs, k)


def _constants_row(least: float, unsure: Any, found: list[list[Judged]], k: int) -> str:
    inside = [np.mean([each.inside for each in one]) for one in found]
    off = [np.abs(np.mean([each.off for each in one], axis=0)) for one in found]
    wide = np.median([np.median([each.wide for each in one]) for one in found])
    scales = [each[-1] for each in off if len(each) > k]
    coefficients = [each[:k].max() for each in off]
    cells = [
        f"{least:g}",
        f"{unsure[0]:g}, {unsure[1]:g}",
        str(sum(len(one) for one in found)),
        f"{np.mean(inside):.3f}",
        f"{min(inside):.2f}",
        f"{max(coefficients):.2f}",
        f"{max(scales):.2f}",
        f"{wide:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["noise", "constants"])
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    if chosen.what == "constants":
        print(f"| {CONSTANTS_HEAD} |", flush=True)
        for row in constants_rows(chosen.runs):
            print(row, flush=True)
        return
    print(f"| {PARTS_HEAD} |", flush=True)
    for design in designs():
        if design.name in ("logit", "normal", "Poisson"):
            print(noise_row(design, chosen.runs), flush=True)


if __name__ == "__main__":
    main()
