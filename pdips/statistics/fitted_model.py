"""A model fitted to noisy statistics: synthetic records at its posterior draws, and
what the statistics of such records would have been.

All that is read here are noisy statistics and public facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.posterior.columns import to_frame as to_records
from pdips.posterior.inspection import Posterior, inspect_statistics
from pdips.privacy.noise import RandomBits
from pdips.statistics import averaging
from pdips.statistics.model import PosteriorFit, RecordRequest, StatisticModel
from pdips.statistics.plan import NoisyStatistics, StatisticPart, number_of_records

CHECKED_DRAWS = 100
# Draws from which noisy statistics are simulated, and records in all
MOST_SIMULATED = 10_000_000
SEED = 17


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A model, the noisy statistics that it was fitted to, and its posterior draws."""

    source: StatisticModel
    measured: NoisyStatistics
    posterior: PosteriorFit

    @property
    def n_records(self) -> int:
        """The public number of records, or what noisy counts say of it."""
        return round(number_of_records(self.measured, self.measured.settled))

    @property
    def sampler(self) -> str:
        """What made the draws: "nuts", "moves" made for the model, or "independent
        draws".
        """
        if self.posterior.convergence is None:
            return "independent draws"
        return "nuts" if "sample_stats" in self.posterior.tree else "moves"

    def records(
        self, draw: dict[str, NDArray[Any]], n: int, rng: np.random.Generator
    ) -> pd.DataFrame:
        """Return synthetic records at one posterior draw."""
        measured = self.measured
        request = RecordRequest(n, measured.public)
        columns = self.source.records(draw, request, measured.schema, rng)
        return to_records(measured.schema, columns, measured.public_frame, rng)

    def predictive_check(
        self, released: Sequence[int]
    ) -> tuple[dict[str, Any], xr.DataTree]:
        """Simulate noisy statistics from the posterior and compare the published ones
        with them.

        Returns what :func:`pdips.posterior.inspection.inspect_statistics` does.
        ``released`` are the numbers of the draws that sets were made of. The
        ``sampler`` is "moves" for chains of moves made for the model, which have no
        energy.
        """
        measured = self.measured
        bits = RandomBits(np.random.default_rng(SEED))
        noisy = {}
        for part, exact in self._simulated(CHECKED_DRAWS, repeats=1):
            drawn = exact[:, 0]
            drawn[:, : part.n_noised] += part.noise(len(drawn), bits)
            noisy[part.name] = drawn * part.statistic.unit(measured.schema)
        convergence = self.posterior.convergence
        posterior = Posterior(
            tree=self.posterior.tree,
            released=[self.posterior.draw(number) for number in released],
            facts={"sampler": self.sampler, "convergence": convergence},
            independent=convergence is None,
        )
        published = {name: measured.value(name) for name in noisy}
        return inspect_statistics(posterior, noisy, published)

    def _spread_out(self, most: int) -> list[dict[str, NDArray[Any]]]:
        """Return at most so many of all posterior draws, and at least two."""
        posterior = self.posterior.tree["posterior"].to_dataset()
        stacked = posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
        total = stacked.sizes["sample"]
        n_draws = max(min(most, total), 2)
        rows = np.linspace(0, total - 1, n_draws).astype(int)
        values = {
            str(name): variable.to_numpy()[rows]
            for name, variable in stacked.data_vars.items()
        }
        return [
            {name: drawn[number] for name, drawn in values.items()}
            for number in range(n_draws)
        ]

    def _simulated(
        self, most: int, repeats: int
    ) -> list[tuple[StatisticPart, FloatArray]]:
        """Return the exact statistics of records at posterior draws, of the parts that
        have noise: whole units, shape (draws, repeats, entries).
        """
        measured = self.measured
        n = self.n_records
        rng = np.random.default_rng(SEED)
        affordable = MOST_SIMULATED // max(n * repeats, 1)
        draws = self._spread_out(min(most, affordable))
        parts = [part for part in measured.parts if part.n_noised]
        simulated: list[list[FloatArray]] = [[] for _ in parts]
        for number in np.repeat(np.arange(len(draws)), repeats):
            frame = self.records(draws[number], n, rng)
            table = Table(frame, measured.schema.without_person())
            for part, rows in zip(parts, simulated, strict=True):
                exact = part.statistic.measure(table).ravel()
                rows.append(exact.astype(np.float64))
        shape = (len(draws), repeats, -1)
        return [
            (part, np.array(rows).reshape(shape))
            for part, rows in zip(parts, simulated, strict=True)
        ]


def compared(fits: Sequence[FittedModel]) -> pd.DataFrame:
    """Weigh models by the noisy statistics that all declare, which records at their
    posterior draws predict; see :func:`pdips.statistics.averaging.compare`.
    """
    measured = fits[0].measured
    sources = [fitted.source for fitted in fits]
    shared = averaging.shared(sources, measured)
    densities = []
    for fitted in fits:
        simulated = fitted._simulated(averaging.DRAWS, averaging.REPEATS)
        exact = {part.name: values for part, values in simulated}
        densities.append(averaging.log_predictive(shared, measured, exact))
    return averaging.compare([source.name for source in sources], densities)
