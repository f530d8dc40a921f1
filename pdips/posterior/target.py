"""The censored posterior that a sampler draws from: a model, what is known before the draw, and how records enter."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.censoring import STEPS, Censored, CensoredTerms, Clip, censor_records
from pdips.posterior.columns import Values
from pdips.posterior.model import Workspace
from pdips.posterior.parameters import PUBLIC_SEED, split
from pdips.posterior.private_reference import Stage
from pdips.posterior.record_likelihood import Points
from pdips.privacy.noise import RandomBits

Parameters = dict[str, NDArray[Any]]

WEIGHT_DRAWS = 32
WEIGHT_SPREAD = 3.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Target:
    """A censored posterior; nothing in it depends on a record."""

    space: Workspace  # the model
    stage: Stage  # where to look for parameters, and what terms are centred on
    window: Fraction  # half-width of the window of one draw, in nats
    clip: Clip = "hard"  # how terms are kept inside
    weights: bool = False  # whether terms are weighed by public weights first

    @property
    def unit(self) -> Fraction:
        """Nats of one whole step of a score."""
        return self.window / STEPS

    @cached_property
    def around(self) -> list[FloatArray]:
        """Public parameter values over which the largest term of a record is sought."""
        rng, anchor = np.random.default_rng(PUBLIC_SEED), self.stage.anchor
        steps = rng.uniform(-WEIGHT_SPREAD, WEIGHT_SPREAD, size=(WEIGHT_DRAWS, len(anchor.place)))
        return split(self.space.model, anchor.place + steps @ anchor.shape.T)

    def terms(self, points: Points) -> CensoredTerms:
        """Return what records add to the log density at some points."""
        return CensoredTerms(
            likelihood=self.space.likelihood,
            points=points,
            window=self.window,
            clip=self.clip,
            centre=self.stage.centre,
            weights=self.around if self.weights else (),
        )

    def centres_and_weights(self, rows: Values) -> tuple[FloatArray, FloatArray]:
        """Return c and alpha of each row, which depend on that row and on public values alone, shape (rows,) each.

        Of a row whose centre isn't finite the weight means nothing: it is left out.
        """
        likelihood, n_rows = self.space.likelihood, len(next(iter(rows.values())))
        centre, largest = np.zeros(n_rows), np.zeros(n_rows)
        if self.stage.centre:
            total = np.full(n_rows, -np.inf)
            for _, some in likelihood.blocks(rows, self.stage.centre):
                total = np.logaddexp(total, np.logaddexp.reduce(some, axis=0))
            centre = total - np.log(len(self.stage.centre[0]))
        with np.errstate(all="ignore"):
            for _, some in likelihood.blocks(rows, self.around) if self.weights else ():
                largest = np.maximum(largest, np.abs(some - centre).max(axis=0))
            weights = np.where(largest > float(self.window), float(self.window) / largest, 1.0)
        return centre, np.where(np.isfinite(weights), weights, 0.0)

    def model_of(self, values: Values) -> Censored:
        """Return the model whose log density is this posterior's, over all records and what was simulated."""
        blueprint, simulated = self.space.blueprint, self.stage.simulated
        rows, correction = dict(values), None
        if simulated:
            n_records, n_simulated = (len(next(iter(each.values()))) for each in (values, simulated))
            rows = {name: np.concatenate([values[name], simulated[name]]) for name in values}
            correction = np.repeat([0.0, self.stage.n_records / n_simulated], [n_records, n_simulated])
        settings: dict[str, Any] = {"window": float(self.window), "clip": self.clip, "correction": correction}
        public = blueprint.source.public_potentials
        made = censor_records(self.space.model, tuple(rows), public_potentials=public, **settings)
        centre, weights = self.centres_and_weights(rows)
        read = {name: rows[name] for name in self.space.likelihood.columns}
        return made.update(values=read, centre=centre, weights=weights)


class JointDraws(ABC):
    """Draws from a posterior that are made together when the first is asked for, and handed out one by one."""

    diagnostics: dict[str, Any]

    def __init__(self, n: int) -> None:
        self._n, self._left = n, list[Parameters]()

    def __call__(self, table: Table) -> Self:
        """Take a table, which a curator holds."""
        self.table = table
        return self

    def draw(self, bits: RandomBits, runs: int = 1) -> list[Parameters]:
        """Return so many draws: values of the free variables, in the model's own units."""
        if not self._left:
            self._left = self.drawn(max(self._n, runs), bits)
        taken, self._left = self._left[:runs], self._left[runs:]
        return taken

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Refuse: these laws can't be spelt out."""
        raise InputError("only draws on a grid have a law that could be spelt out")

    def parameters(self, answers: Sequence[Parameters], rng: np.random.Generator) -> list[Parameters]:
        """Return what was drawn, as it was."""
        return list(answers)

    @abstractmethod
    def drawn(self, n: int, bits: RandomBits) -> list[Parameters]:
        """Draw n times, given ``table``."""
