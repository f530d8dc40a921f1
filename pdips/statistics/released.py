"""Synthetic sets from noisy statistics: a posterior, a draw for each set, records. All of it post-processing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.mechanism import Drawn
from pdips.posterior.records import to_frame as to_records
from pdips.privacy.curator import Clock
from pdips.statistics.fit import Fitted, Options, fit
from pdips.statistics.model import StatisticModel, Wanted
from pdips.statistics.noisy_model import Likelihood
from pdips.statistics.plan import Measured, to_frame
from pdips.statistics.post_processing import number_of_records, settle
from pdips.statistics.predictive import check_predictive

STATISTICS, POSTERIOR = "statistics", "posterior"

MOST_DRAWS = 1_000
MOST_COLUMNS = 1_000
"""Posterior draws, and numbers of each, that are published beside the sets."""


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """How sets are made of noisy statistics.

    Parameters
    ----------
    model : StatisticModel
        The model.
    likelihood : {"noise-aware", "plug-in"}
        How it sees noisy statistics.
    n_sets : int
        Number of sets: each from a posterior draw of its own.
    n_records : int, optional
        Records of each set; as many as the table has unless given.
    options : Options
        How much is drawn from the posterior.
    """

    model: StatisticModel
    likelihood: Likelihood
    n_sets: int
    n_records: int | None
    options: Options


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """Synthetic sets, with the noisy statistics and the posteriors that they come from."""

    synthesis: Synthesis
    measured: Sequence[Measured]
    fits: Sequence[Fitted]
    sets: Sequence[pd.DataFrame]
    covariates: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    public: pd.DataFrame = field(default_factory=pd.DataFrame)

    def drawn(self) -> Drawn:
        """Return what a mechanism hands over."""
        frames = [to_frame(measured, settle(measured)) for measured in self.measured]
        tables = {STATISTICS: _stacked(frames)}
        posterior = [_published(each) for each in self.fits]
        if all(each.shape[1] <= MOST_COLUMNS for each in posterior):
            tables[POSTERIOR] = _stacked(posterior)
        return Drawn(
            sets=self.sets,
            statistics={STATISTICS: tables[STATISTICS]},
            noise=self.measured[0].noise(),
            tables=tables,
            diagnostics={"likelihood": self.synthesis.likelihood, "convergence": _convergence(self.fits)},
            closer=partial(self._closer),
        )

    @property
    def _per_fit(self) -> int:
        """Number of sets that each posterior gave a draw to."""
        return len(self.sets) if len(self.fits) == 1 else 1

    def _closer(self) -> tuple[dict[str, Any], Any]:
        return check_predictive(
            self.synthesis.model, self.measured[0], self.fits[0], self.covariates, self.public, self._per_fit
        )


def synthesize(
    synthesis: Synthesis,
    measured: Sequence[Measured],
    public: pd.DataFrame,
    covariates: Mapping[str, NDArray[Any]],
    rng: np.random.Generator,
    clock: Clock,
    fitting: Callable[..., Fitted] = fit,
) -> Made:
    """Draw synthetic sets from noisy statistics.

    Parameters
    ----------
    synthesis : Synthesis
        How.
    measured : sequence of Measured
        One sanitization for all sets, or one for each.
    public : DataFrame
        Public columns as they are written.
    covariates : mapping of str to ndarray
        The same as models read them.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.
    clock : Clock
        Times each step.
    fitting : callable
        :func:`pdips.statistics.fit.fit`, or what stands in for it when a model is tried.
    """
    schema, fits, sets = measured[0].schema, list[Fitted](), list[pd.DataFrame]()
    each = synthesis.n_sets if len(measured) == 1 else 1
    for noisy in measured:
        with clock.step("drawing from the posterior"):
            fits.append(
                fitting(synthesis.model, noisy, synthesis.likelihood, n_draws=each, rng=rng, options=synthesis.options)
            )
    for number in range(synthesis.n_sets):
        with clock.step(f"drawing synthetic set {number + 1} of {synthesis.n_sets}"):
            place = (0, number) if len(measured) == 1 else (number, 0)
            n = synthesis.n_records or _size(measured[place[0]])
            draw = fits[place[0]].draw(place[1])
            columns = synthesis.model.records(draw, Wanted(n, covariates), schema, rng)
            sets.append(to_records(schema, columns, public, rng))
    return Made(synthesis=synthesis, measured=measured, fits=fits, sets=sets, covariates=covariates, public=public)


def _size(measured: Measured) -> int:
    return round(number_of_records(measured, settle(measured)))


def _stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables one below the other; with more than one, ``set`` says which set each belongs to."""
    if len(frames) == 1:
        return frames[0]
    return pd.concat([each.assign(set=number) for number, each in enumerate(frames, start=1)], ignore_index=True)


def _published(fitted: Fitted) -> pd.DataFrame:
    """Return posterior draws as a table, one a row, columns such as ``mu[0, 1]``."""
    stacked = fitted.tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    total = stacked.sizes["sample"]
    taken = np.arange(min(total, MOST_DRAWS)) * max(total // MOST_DRAWS, 1)
    columns: dict[str, NDArray[Any]] = {}
    for name, values in stacked.data_vars.items():
        known = values.to_numpy()[taken]
        for place in np.ndindex(known.shape[1:]):
            label = f"{name}[{', '.join(map(str, place))}]" if place else str(name)
            columns[label] = known[(slice(None), *place)]
    return pd.DataFrame(columns)


def _convergence(fits: Sequence[Fitted]) -> Any:
    return [each.convergence for each in fits if each.convergence is not None] or "independent draws"
