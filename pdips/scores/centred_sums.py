"""The likelihood of noisy sums of centred scores, where covariates are confidential:
their mean follows from a public table that stands for the covariates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pdips.arrays import BoolArray, FloatArray
from pdips.posterior.columns import stand_ins
from pdips.posterior.model import PUBLIC_SEED, Blueprint, initial
from pdips.release.public_draws import Misfit
from pdips.scores.centred_model import CentredLikelihood, Near
from pdips.scores.centring import COUNTED, CentredScores, Centring, Kind
from pdips.scores.column_cells import ColumnCells
from pdips.scores.deformed import (
    UNSURE,
    Deformed,
    deformations,
    doubtful_sizes,
)
from pdips.scores.inner_points import AtPoints, InnerPoints
from pdips.scores.pseudo_table import (
    MeanMap,
    Rows,
    at_points,
    covariates_in,
    weighted,
)
from pdips.scores.sums import (
    LITTLE,
    Density,
    Linearised,
    MeasuredSums,
    Noises,
    NormalPrior,
    share_above,
    share_further,
)

# Distance of the published curvature from that of the pseudo table, in deviations of
# the noise, from which on the mean is corrected by it: the pseudo table is too smooth
TOO_SMOOTH = 1.7
# Least eigenvalue of a curvature, over the largest that noise alone would have
LEAST_CURVATURE = 0.5
# Least eigenvalue of the sampling covariance, over its mean
LEAST_SAMPLING = 0.1
# Share of a curvature that a wrong model may be off by. Without it pure releases of
# earnings covered 19 of 25 coefficients, with it 30 of 30 (2026-12-01); with more
# posteriors at small budgets have tails out to the prior
OF_MODEL = 0.5
# Searches for the most probable parameters of pooled sums, each about those before
PASSES = 2


@dataclass(frozen=True, eq=False)
class CentredRound:
    """Noisy sums of one round: of scores, of curvatures, and in the last one of squares
    of scores, with the deviations of the noise.
    """

    centring: Centring
    # whitened scores, or their products: see :attr:`Centring.pairs`
    noisy: Mapping[Kind, FloatArray]
    deviations: Mapping[Kind, float]


@dataclass(frozen=True, eq=False)
class PooledScores:
    """The last sums of scores as several releases of one table have them together, in
    the units of one of these: see :func:`pooled`.
    """

    noisy: FloatArray  # shape (parameters,)
    own: FloatArray  # (parameters, parameters): what the own noisy sums count in it
    noise: FloatArray  # (parameters, parameters): covariance of the noise of the others


@dataclass(frozen=True, eq=False)
class CentredSums(MeasuredSums):
    """The noisy sums of one table, and the public table that their mean follows
    from.
    """

    space: Blueprint
    points: InnerPoints
    prior: NormalPrior
    rows: Rows
    n_records: float
    # counts of the cells of all columns that aren't public
    cells: ColumnCells
    counts: FloatArray
    counts_deviation: float
    counts_step: str  # of the plan
    n_variance: float = 0.0
    rounds: tuple[CentredRound, ...] = ()
    laplace: bool = False
    pooled: PooledScores | None = None
    # whether :attr:`scores` are less what deformations of the outcomes' law do to them
    is_corrected: bool = True
    # points of the rows' outcomes, and scores at them, by parameters
    held: dict[bytes, tuple[InnerPoints, AtPoints]] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def _at(self) -> tuple[CentredScores, ...]:
        """What rows of the pseudo table have in the sums of each round."""
        return tuple(self.at_rows(each.centring)[1] for each in self.rounds)

    @cached_property
    def candidates(self) -> dict[str, Any]:
        """The rows as records, with some outcome."""
        spread = stand_ins(self.space.schema, self.rows.n, known=self.rows.values)
        return dict(self.space.beside(spread))

    def at_rows(self, centring: Centring) -> tuple[AtPoints, CentredScores]:
        """Return scores of the rows at points of their outcomes, and what is summed of
        them.
        """
        _, at = self._points_of_rows(centring)
        return at, centring.of(at)

    def _points_of_rows(self, centring: Centring) -> tuple[InnerPoints, AtPoints]:
        """Return the points of the rows' outcomes that are likely at some parameters,
        and scores at them.
        """
        place = centring.place.tobytes()
        if place not in self.held:
            self.points.given(centring.place)
            matrices = self.points.matrices(self.candidates, self.n_records)
            at = self.points.split(matrices)
            kept = self.points.likely(at.weights)
            self.held[place] = (self.points.only(kept), at.only(kept))
        return self.held[place]

    @cached_property
    def weights(self) -> FloatArray:
        """The weights of the rows, given all noisy counts and curvatures."""
        n = self.n_records
        is_covariate = covariates_in(self.space, self.cells)
        features = [self.rows.shares]
        answers = [self.counts[is_covariate] / n]
        deviations = [np.full(is_covariate.sum(), self.counts_deviation / n)]
        for measured, of_rows in zip(self.rounds, self._at, strict=True):
            curvature = measured.noisy["curvature"]
            features.append(of_rows.curvature)
            answers.append(curvature / n)
            deviation = measured.deviations["curvature"] / n
            deviations.append(np.full(len(curvature), deviation))
        return weighted(
            self.rows,
            np.concatenate(features, axis=1),
            np.concatenate(answers),
            np.concatenate(deviations) ** 2,
        )

    def with_rounds(self, rounds: Sequence[CentredRound]) -> "CentredSums":
        """Return the sums with further rounds."""
        return replace(self, rounds=(*self.rounds, *rounds))

    @property
    def last(self) -> CentredRound:
        """The round from which the posterior is drawn."""
        return self.rounds[-1]

    @property
    def scores(self) -> FloatArray:
        """The noisy sums of scores from which the posterior is drawn: where outcomes
        are one number less what deformations of their law do to them.
        """
        if self.pooled is not None:
            return self.pooled.noisy
        scores = self.last.noisy["scores"]
        if self.deformed is None:
            return scores
        return scores - self.deformed.factors @ self.beyond

    @cached_property
    def beyond(self) -> FloatArray:
        """How many records are counted beyond what the model expects at the reference,
        in the order of COUNTED.
        """
        noisy = np.concatenate([self.last.noisy[kind] for kind in COUNTED])
        return np.asarray(noisy - self.n_records * self.counted_shares)

    @cached_property
    def counted_shares(self) -> FloatArray:
        """The shares of records that are counted if the model is right, whatever their
        covariates, in the order of COUNTED.
        """
        at, _ = self.at_rows(self.last.centring)
        return np.array([0.5, float(at.weights[0] @ at.shape[0, 1:])])

    @cached_property
    def deformed(self) -> Deformed | None:
        """What deformations of the law of outcomes do to the last sums; None where
        outcomes aren't one number, or no sums were asked for.
        """
        is_asked = bool(self.rounds) and "above" in self.last.noisy
        if not (self.is_corrected and is_asked):
            return None
        means = self.plain_means
        at, _ = self.at_rows(self.last.centring)
        inner = means.inner_weights(means.reference[None])[0]
        is_continuous = self.points.weights is not None
        changes = deformations(inner, is_continuous=is_continuous)
        changes = changes - (inner[..., None] * changes).sum(axis=1, keepdims=True)
        counted = np.stack([at.above[:, 1:], at.shape[:, 1:]], axis=-1)
        flat = inner.size
        return Deformed(
            outer=(means.weights[:, None] * inner).ravel(),
            clipped=means.scores.reshape(flat, -1),
            scores=means.row_scores(means.place, inner).reshape(flat, -1),
            counted=(counted - self.counted_shares).reshape(flat, -1),
            changes=changes.reshape(flat, -1),
        )

    @property
    def last_reference(self) -> FloatArray:
        """The parameters at which scores were taken last; those at which the model
        starts if none were.
        """
        if not self.rounds:
            return initial(self.space.model)
        return self.last.centring.place

    @cached_property
    def means(self) -> MeanMap:
        """The mean of :attr:`scores` at any parameters."""
        plain = self.plain_means
        if self.deformed is None:
            return plain
        counted = self.deformed.counted.reshape(*plain.inner.shape, -1)
        corrected = plain.scores - counted @ self.deformed.factors.T
        return replace(plain, scores=corrected)

    @cached_property
    def plain_place(self) -> FloatArray:
        """The most probable parameters by the last sums as they were published."""
        plain = replace(self, is_corrected=False, pooled=None)
        return plain.mode_of_last().place

    @cached_property
    def plain_means(self) -> MeanMap:
        """The mean of the last sums at any parameters, as they were published."""
        centring = self.last.centring
        points, at = self._points_of_rows(centring)
        of_rows = centring.of(at)
        columns = at_points(points, self.candidates, at)
        map_ = MeanMap(
            points=points,
            columns=columns,
            weights=self.n_records * self.weights,
            inner=at.weights,
            scores=of_rows.at_points,
            place=centring.place,
            root=np.linalg.inv(centring.whitening).T,
        )
        if self.curvature_gap <= TOO_SMOOTH:
            return map_
        missing = centring.matrix(self.last.noisy["curvature"])
        missing = missing - self.n_records * centring.matrix(
            self.weights @ of_rows.curvature
        )
        return replace(map_, correction=missing)

    @cached_property
    def curvature_gap(self) -> float:
        """How far the noisy curvature is from that of the pseudo table: the root mean
        square in standard deviations of the noise. Above 1 the pseudo table is too
        smooth; the noise itself is kept out of its weights.
        """
        expected = self.n_records * (self.weights @ self._at[-1].curvature)
        apart = self.last.noisy["curvature"] - expected
        deviation = self.last.deviations["curvature"]
        return float(np.sqrt((apart**2).mean()) / deviation)

    @cached_property
    def sampling(self) -> FloatArray:
        """The covariance of :attr:`scores` but for the noise."""
        plain = self.plain_sampling
        deformed = self.deformed
        if deformed is None:
            return plain
        factors = deformed.factors
        with_counted, of_counted = deformed.covariances
        crossed = factors @ with_counted.T
        mixed = plain - crossed - crossed.T + factors @ of_counted @ factors.T
        mixed = _lifted(mixed, LEAST_SAMPLING * float(np.trace(mixed)) / len(mixed))
        sizes = doubtful_sizes(self)
        unsure = deformed.of_sums * np.asarray(UNSURE) * sizes
        return np.asarray(mixed + unsure @ unsure.T)

    @cached_property
    def plain_sampling(self) -> FloatArray:
        """The covariance of the exact sums of scores: the noisy sum of their squares,
        shrunk towards the curvature as far as noise explains how far they are apart;
        the curvature before the last round.
        """
        last = self.last
        centring = last.centring
        d = len(centring.place)
        of_curvature = last.deviations["curvature"]
        largest = of_curvature * np.sqrt(2 * d)
        expected = self.n_records * (self.weights @ self._at[-1].curvature)
        least = min(LEAST_CURVATURE * largest, self.n_records / 2)
        curvature = _lifted(centring.matrix(expected), least)
        if "squares" not in last.noisy:
            return curvature
        of_squares = last.deviations["squares"]
        squares = centring.matrix(last.noisy["squares"])
        ratio = max(float(np.trace(squares) / np.trace(curvature)), LEAST_SAMPLING)
        apart = squares - ratio * curvature
        entries = d * (d + 1) / 2
        if centring.norm == "l1":
            entries = d * d
        noise = entries * (of_squares**2 + ratio**2 * of_curvature**2)
        distance = float((apart**2).sum())
        share = 1 - noise / distance if distance > noise else 0.0
        mixed = ratio * curvature + share * apart
        return _lifted(mixed, LEAST_SAMPLING * float(np.trace(mixed)) / d)

    @cached_property
    def curvature_error(self) -> FloatArray:
        """The variance of the error of each entry of the curvature, shape (parameters,
        parameters): that of its noise, or where that is less what the covariates' law
        and a model that is wrong could move it by.
        """
        centring = self.last.centring
        variances = np.full(
            len(centring.doubled), self.last.deviations["curvature"] ** 2
        )
        if self.curvature_gap <= TOO_SMOOTH:
            of_rows = self._at[-1].curvature
            mean = self.weights @ of_rows
            rows, columns = centring.pairs
            own = np.abs(np.diag(centring.matrix(mean)))
            of_model = OF_MODEL * np.sqrt(own[rows] * own[columns]) * centring.doubled
            spread = self.weights @ (of_rows - mean) ** 2 + of_model**2
            spread = self.n_records**2 * spread
            variances = variances * spread / (variances + spread)
        # in units of the matrix, whose entries are divided by as much
        return centring.matrix(variances / centring.doubled)

    def noise_at(self, moves: FloatArray) -> FloatArray:
        """Return the covariance of the noise on the sums, with that of the curvature
        along whitened moves from the reference: shape (..., parameters, parameters).
        Moves are those of :meth:`MeanMap.straight`, which have an end where the sums
        have one.
        """
        moves = np.asarray(moves)
        noise = self.score_noise + self._noise_along(moves)
        if self.pooled is not None:
            own = self.pooled.own
            noise = own @ noise @ own.T + self.pooled.noise
        return np.asarray(noise)

    @cached_property
    def score_noise(self) -> FloatArray:
        """The covariance of the noise on :attr:`scores` at the reference."""
        deviations = self.last.deviations
        noise = deviations["scores"] ** 2 * np.eye(len(self.last.centring.place))
        if self.deformed is None:
            return noise
        factors = self.deformed.factors
        of_counts = np.array([deviations[kind] ** 2 for kind in COUNTED])
        of_number = factors @ self.counted_shares
        noise = noise + (factors * of_counts) @ factors.T
        return np.asarray(noise + self.n_variance * np.outer(of_number, of_number))

    def _noise_along(self, moves: FloatArray) -> FloatArray:
        """Return the covariance that noise on the curvature has along moves."""
        one = np.eye(moves.shape[-1])
        error = self.curvature_error
        outer = moves[..., :, None] * moves[..., None, :]
        along = outer * error * (1 - one) + (moves**2 @ error)[..., None] * one
        return np.asarray(along)

    def linearised(self, place: FloatArray, passes: int = 1) -> Linearised:
        """Return what the last sums say near some parameters."""
        means = self.means
        inner = means.inner_weights(means.logs(place[None]))[0]
        mean = means.mean(inner, means.whitened(place))
        return Linearised(
            place=place,
            residual=self.scores - mean,
            slopes=means.slopes(place, inner),
            sampling=self.sampling,
            noise=self.noise_at(means.straight(mean)),
            laplace=np.zeros(len(mean)),
            information=means.information(place, inner) / self.n_records,
        )

    def mode_of_last(self) -> Linearised:
        """Return what the sums say near the most probable parameters."""
        return self.mode(self.last_reference)

    def precise(self, place: FloatArray) -> Linearised:
        """Return what the sums say near some parameters: nothing is simulated."""
        return self.linearised(place)

    @property
    def last_scores(self) -> "CentredSums":
        """The sums from which the posterior is drawn."""
        return self

    def misfits(self, place: FloatArray) -> dict[Misfit, float]:
        found: dict[Misfit, float] = {"spread": self._misfit_of_squares(place)}
        if "above" in self.last.noisy:
            # tails that are too short hide nothing from clipped scores
            found["tails"] = self._share_above("shape", place)
            above = self._share_above("above", place)
            found["skew"] = min(1.0, 2 * min(above, 1 - above))
        return found

    def _share_above(self, kind: Kind, place: FloatArray) -> float:
        """Return how often the noisy number of records that are counted would be as
        large, if the model were right.

        The expected number at the reference is the same for all covariates. What
        parameters explain of it follows from the scores.
        """
        means = self.plain_means
        last = self.last
        inner = means.inner_weights(means.logs(place[None]))[0]
        outer = (means.weights[:, None] * inner).ravel()
        at = self.at_rows(last.centring)[0]
        counted = (at.shape if kind == "shape" else at.above)[:, 1:].ravel()
        scores = means.scores.reshape(len(outer), -1)
        by_point = means.row_scores(place, inner).reshape(len(outer), -1)
        expected = np.append(outer @ counted, means.mean(inner, means.whitened(place)))
        slopes = np.vstack([(outer * counted) @ by_point, means.slopes(place, inner)])
        normal = _covariance(np.column_stack([counted, scores]), outer)
        if self.points.weights is not None:
            # a record is counted or isn't: only points at a cut are counted in part
            normal[0, 0] = expected[0] * (1 - expected[0] / self.n_records)
        normal[0, 0] += self.n_variance * (expected[0] / self.n_records) ** 2
        noise = np.full(len(expected), last.deviations["scores"] ** 2)
        noise[0] = last.deviations[kind] ** 2
        normal[1:, 1:] += self._noise_along(means.straight(expected[1:]))
        laplace = noise if self.laplace else np.zeros(len(noise))
        return share_above(
            np.append(last.noisy[kind], last.noisy["scores"]) - expected,
            slopes,
            normal + np.diag(noise - laplace),
            laplace,
        )

    def _misfit_of_squares(self, place: FloatArray) -> float:
        """Return how often the noisy squares of scores would be as far from what the
        model says they are at some parameters, if it were right.

        That is White's information matrix test (1982) of noisy numbers: it looks for
        residuals that are spread more, less or otherwise than the model has it. What
        the pseudo table says of covariates is put right by the noisy curvature, whose
        error counts.
        """
        means = self.plain_means
        noisy = self.last.noisy
        n_squares = len(noisy["squares"])
        inner = means.inner_weights(means.logs(place[None]))[0]
        outer = (means.weights[:, None] * inner).ravel()
        summed = self._squares_and_scores()
        by_point = means.row_scores(place, inner).reshape(len(outer), -1)
        slopes = (outer[:, None] * summed).T @ by_point
        slopes[n_squares:] = means.slopes(place, inner)
        missing, of_curvature = self._missing_squares()
        expected = outer @ summed
        expected[:n_squares] += missing
        expected[n_squares:] = means.mean(inner, means.whitened(place))
        normal = _covariance(summed, outer)
        normal[:n_squares, :n_squares] += of_curvature * np.eye(n_squares)
        deviations = self.last.deviations
        noise = np.full(len(expected), deviations["scores"] ** 2)
        noise[:n_squares] = deviations["squares"] ** 2
        gaussian = 0.0 if self.laplace else noise
        return share_further(
            np.concatenate([noisy["squares"], noisy["scores"]]) - expected,
            slopes,
            normal + np.diag(gaussian * np.ones(len(noise))),
            noise - gaussian,
        )

    def _squares_and_scores(self) -> FloatArray:
        """Return what each point of each row has in the last sums of squares and of
        scores, shape (rows * points, sums).
        """
        means = self.plain_means
        centring = self.last.centring
        rows, columns = centring.pairs
        scores = means.scores.reshape(-1, means.scores.shape[-1])
        squares = scores[:, rows] * scores[:, columns] * centring.doubled
        return np.concatenate([squares, scores], axis=1)

    def _missing_squares(self) -> tuple[FloatArray, float]:
        """Return what the pseudo table is short of in the sums of squares, by the noisy
        curvature, and the variance that its noise has there.
        """
        last = self.last
        of_table = self.plain_means.weights @ self._at[-1].curvature
        ratio = np.trace(self.plain_sampling) / np.trace(last.centring.matrix(of_table))
        missing = ratio * (last.noisy["curvature"] - of_table)
        return missing, float((ratio * last.deviations["curvature"]) ** 2)

    def density(self, here: Linearised, anchors: FloatArray, noises: Noises) -> Density:
        """Return the likelihood at any parameters that are near: it needs no anchors,
        and takes Laplace noise as normal.
        """
        near = self.near(here)
        return lambda places: (
            self.log_likelihood(places) + near.log_density(places),
            np.ones(len(places)),
        )

    def likelihood(self, here: Linearised, noises: Noises) -> CentredLikelihood:
        """Return the likelihood as a PyMC model."""
        return CentredLikelihood(self, self.near(here))

    def near(self, here: Linearised) -> Near:
        """Return the parameters that are near, by what the sums say near some."""
        return Near(here.place + self.move(here), here.curvature + self.prior.precision)

    @property
    def clipped(self) -> list[float]:
        """The share of what the pseudo table stands for that each round pulls into its
        ball.
        """
        shares = []
        for measured in self.rounds:
            at, _ = self.at_rows(measured.centring)
            lengths = measured.centring.lengths(at)
            is_clipped = lengths > measured.centring.radius
            shares.append(float(self.weights @ (at.weights * is_clipped).sum(axis=1)))
        return shares

    def predicted_scores(self, places: FloatArray) -> FloatArray:
        """Return the last sums as they are simulated at parameters, shape (places,
        parameters).
        """
        rng = np.random.default_rng(PUBLIC_SEED)
        means = self.means
        simulated = np.empty((len(places), len(means.place)))
        for some in means.blocks(len(places)):
            inner = means.inner_weights(means.logs(places[some]))
            mean = means.mean(inner, means.whitened(places[some]))
            covariance = self.sampling + self.noise_at(means.straight(mean))
            noise = rng.standard_normal(mean.shape)
            apart = (np.linalg.cholesky(covariance) @ noise[..., None])[..., 0]
            simulated[some] = mean + apart
        return simulated

    @cached_property
    def is_outcome(self) -> BoolArray:
        """Which of the cells are those of outcomes."""
        return ~covariates_in(self.space, self.cells)

    def predicted_counts(self, places: FloatArray) -> FloatArray:
        """Return the noisy counts of outcomes as they are simulated at parameters,
        shape (places, cells).
        """
        rng = np.random.default_rng(PUBLIC_SEED)
        means = self.means
        cells = ColumnCells(
            self.space.columns,
            {name: self.cells.edges[name] for name in self.space.synthesized},
        )
        records = self.points.law.written(means.columns)
        indicators = cells.indicators(records)
        shares = np.empty((len(places), indicators.shape[1]))
        for some in means.blocks(len(places)):
            inner = means.inner_weights(means.logs(places[some]))
            outer = (self.weights[:, None] * inner).reshape(len(inner), -1)
            shares[some] = outer @ indicators
        variances = self.n_records * shares * (1 - shares) + self.counts_deviation**2
        noise = rng.standard_normal(shares.shape)
        return self.n_records * shares + np.sqrt(variances) * noise

    def log_likelihood(self, places: FloatArray) -> FloatArray:
        """Return log densities of the last sums at parameters, shape (places,), up to a
        constant.
        """
        means = self.means
        found = np.empty(len(places))
        for some in means.blocks(len(places)):
            inner = means.inner_weights(means.logs(places[some]))
            mean = means.mean(inner, means.whitened(places[some]))
            apart = self.scores - mean
            covariance = self.sampling + self.noise_at(means.straight(mean))
            covariance += LITTLE * np.trace(self.sampling) * np.eye(apart.shape[-1])
            root = np.linalg.cholesky(covariance)
            standard = np.linalg.solve(root, apart[..., None])[..., 0]
            logs = np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
            found[some] = -(standard**2).sum(axis=-1) / 2 - logs
        return np.where(np.isfinite(found), found, -np.inf)


def pooled(parts: Sequence[CentredSums]) -> CentredSums:
    """Return the noisy sums of several releases of one table and model as one, with the
    noise of all of them and the sampling error of one.

    Parameters
    ----------
    parts : sequence of CentredSums
        At least one, each with its last round.

    Returns
    -------
    CentredSums
        Those of the part with the least noise, whose scores are a mean over all parts,
        weighted by the inverse covariances of their noise.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a part says nothing of some parameters.
    """
    together, *others = sorted(parts, key=_loudness)
    if not others:
        return together
    base = together
    place = base.mode_of_last().place
    for _ in range(PASSES):
        together = replace(base, pooled=_pooled_at(base, others, place))
        place = together.mode(place).place
    return together


def _loudness(sums: CentredSums) -> float:
    """Return the log volume of the noise in units of the parameters."""
    near = sums.linearised(sums.last_reference)
    noise = np.linalg.slogdet(near.noise)[1]
    return float(noise - 2 * np.linalg.slogdet(near.slopes)[1])


def _pooled_at(
    base: CentredSums, others: Sequence[CentredSums], place: FloatArray
) -> PooledScores:
    """Return the scores of all parts in the units of one, as far as they are linear
    near some parameters.
    """
    own = base.linearised(place)
    expected = base.scores - own.residual
    own_precision = np.linalg.inv(own.noise)
    precision = np.zeros_like(own_precision)
    weighted = np.zeros(len(expected))
    for other in others:
        there = other.linearised(place)
        # both are sums over the same records: the move of the parameters that the
        # other's residual asks for is one that this one's would ask for, but for noise
        units = own.slopes @ np.linalg.inv(there.slopes)
        of_other = np.linalg.inv(units @ there.noise @ units.T)
        precision += of_other
        weighted += of_other @ (expected + units @ there.residual)
    covariance = np.linalg.inv(own_precision + precision)
    return PooledScores(
        noisy=covariance @ (own_precision @ base.scores + weighted),
        own=covariance @ own_precision,
        noise=covariance @ precision @ covariance,
    )


def _lifted(matrix: FloatArray, least: float) -> FloatArray:
    """Return a symmetric matrix whose eigenvalues are at least so large."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def _covariance(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the covariance of sums over independent records, whose values have given
    weights, shape (points,), that add up to the number of records.
    """
    mean = weights @ values
    squares = (weights[:, None] * values).T @ values
    return np.asarray(squares - np.outer(mean, mean) / weights.sum())
