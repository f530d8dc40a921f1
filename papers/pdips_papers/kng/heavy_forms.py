"""The synthesizers of the study ``heavy-tailed``, each a row of its tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.mechanism import Mechanism
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits
from pdips.quantile.kng import KNG, QUANTILES
from pdips.quantile.kng_residual import KNGResidual
from pdips_papers.kng.as_printed import PrintedKNG
from pdips_papers.kng.heavy_paper import BUDGET, spent
from pdips_papers.kng.heavy_regression import quantile_lines
from pdips_papers.kng.pmse_mechanism import pmse_mechanism

UPPER = {"x1": 1_000, "x2": 1_000, "x3": 2_000}
SCHEMA = Schema.model_validate({"columns": {name: {"lower": 0, "upper": upper} for name, upper in UPPER.items()}})
"""Public: the paper's bounds on outcomes. No value that can be drawn in practice is beyond them; they are cut there."""

PREDICTOR_CAPS = {"x1": 46, "x2": 106}
TAUS = np.array([float(exact(tau, "quantiles")) for tau in QUANTILES])
CHANCES = np.diff(np.concatenate([[0.0], TAUS[:-1], [1.0]]))
"""How likely the authors' code draws each quantile: what lies between it and the one below, all of the end above."""

MIDDLES = np.diff(np.concatenate([[0.0], (TAUS[1:] + TAUS[:-1]) / 2, [1.0]]))
"""How likely they are as the paper's text has it, each in the middle of its bin."""

Kind = Literal["reference", "published", "sound", "ours"]


def draw_population(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return records of section 4.1: x1 ~ Exp(0.1), x2 = 4 + 3 x1 + Exp(0.1), x3 = 3 + 2 x1 + x2 + Exp(0.1)."""
    noise = 10 * rng.standard_exponential((3, n))
    x1 = noise[0]
    x2 = 4 + 3 * x1 + noise[1]
    x3 = 3 + 2 * x1 + x2 + noise[2]
    return pd.DataFrame({"x1": x1, "x2": x2, "x3": x3}).clip(lower=0, upper=pd.Series(UPPER), axis=1)


@dataclass(frozen=True)
class Case:
    """A replicate: the table to be synthesized, another from the same law to predict, a third to compare with."""

    training: pd.DataFrame
    testing: pd.DataFrame
    fresh: pd.DataFrame

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator) -> "Case":
        """Draw n records of each."""
        return cls(*(draw_population(n, rng) for _ in range(3)))

    @cached_property
    def table(self) -> Table:
        """The training table with its public schema."""
        return Table(self.training, SCHEMA)


Make = Callable[[Case, str, np.random.Generator], pd.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A row of the tables.

    Parameters
    ----------
    kind : {"reference", "published", "sound", "ours"}
        No privacy; a paper's mechanism as printed; the same made sound; the recommended one.
    short : str
        Its name in pictures.
    make : callable
        Returns a synthetic table of a case at a total epsilon.
    settings : mapping
        Of ``kng``, for the rows that are made by it.
    """

    kind: Kind
    short: str
    make: Make
    settings: Mapping[str, Any] = field(default_factory=dict)

    def true_epsilon(self, epsilon: str) -> float | None:
        """Return what the row spends if it claims epsilon; None where no bound is known."""
        if self.kind == "published":
            return spent(PrintedKNG(epsilon=epsilon, **self.settings)) if self.settings else None
        return None if self.kind == "reference" else float(exact(epsilon, "epsilon"))


def _released(mechanism: Mechanism, case: Case, rng: np.random.Generator) -> pd.DataFrame:
    return mechanism.release(case.table, rng=rng)[0].sets[0]


def _kng(kind: Kind, short: str, **settings: Any) -> Form:
    settings |= {"caps": PREDICTOR_CAPS, "budget": BUDGET}
    if kind == "published":
        settings |= {"between": "quantile"}
    build = PrintedKNG if kind == "published" else KNG
    return Form(
        kind=kind,
        short=short,
        make=lambda case, epsilon, rng: _released(build(epsilon=epsilon, **settings), case, rng),
        settings=settings,
    )


def _residual(case: Case, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
    return _released(KNGResidual(epsilon=epsilon, caps=PREDICTOR_CAPS), case, rng)


def _pmse(variant: str) -> Make:
    def make(case: Case, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        return pmse_mechanism(case.training, epsilon, variant=variant, bits=RandomBits(rng))

    return make


def non_private(chances: FloatArray) -> Make:
    """Return what draws records from quantile regressions of the training table, one quantile for each value."""

    def make(case: Case, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        found: dict[str, Any] = {}
        for name in case.training:
            before = list(found)
            lines = quantile_lines(case.training[before].to_numpy(), case.training[name].to_numpy(), TAUS.tolist())
            chosen = lines[rng.choice(len(TAUS), len(case.training), p=chances)]
            found[str(name)] = chosen[:, 0] + sum(chosen[:, k + 1] * found[each] for k, each in enumerate(before))
        return pd.DataFrame(found)

    return make


FRESH, NON_PRIVATE, PMSE, RECOMMENDED = "Fresh sample", "Non-private", "pMSE Mechanism", "kng-residual"
CENTRED = "Non-private, bins centred"
SCHEMES: dict[str, dict[str, str]] = {
    "Stepwise - Fixed": {"scheme": "stepwise", "slopes": "fixed"},
    "Stepwise - Varying": {"scheme": "stepwise", "slopes": "varying"},
    "Sandwich - Fixed": {"scheme": "sandwich", "slopes": "fixed"},
    "Sandwich - Varying": {"scheme": "sandwich", "slopes": "varying"},
    "KNG": {"scheme": "plain", "slopes": "varying"},
}
"""The paper's own methods, by their names in its tables."""

BEYOND: dict[str, dict[str, str]] = {
    "Joint": {"scheme": "joint", "slopes": "fixed"},
    "Recursive": {"scheme": "recursive", "slopes": "fixed"},
}


def published_row(method: str) -> str:
    """Return the row of a paper's method as printed."""
    return f"{method} (published)"


def sound_row(method: str) -> str:
    """Return the row of a paper's method made sound."""
    return f"{method} (sound)"


def _forms() -> dict[str, Form]:
    fresh = Form(kind="reference", short="fresh sample", make=lambda case, epsilon, rng: case.fresh)
    forms = {
        FRESH: fresh,
        NON_PRIVATE: Form(kind="reference", short="non-private", make=non_private(CHANCES)),
        CENTRED: Form(kind="reference", short="non-private, centred", make=non_private(MIDDLES)),
    }
    words = {method: method.lower().replace(" - ", ", ").replace("kng", "KNG") for method in SCHEMES}
    for method, settings in SCHEMES.items():
        forms[published_row(method)] = _kng("published", f"{words[method]}, publ.", **settings)
    forms[published_row(PMSE)] = Form(kind="published", short="pMSE mech., publ.", make=_pmse("published"))
    for method, settings in SCHEMES.items():
        forms[sound_row(method)] = _kng("sound", words[method], **settings)
    forms |= {sound_row(method): _kng("sound", method.lower(), **each) for method, each in BEYOND.items()}
    forms[sound_row(PMSE)] = Form(kind="sound", short="pMSE mech.", make=_pmse("sound"))
    return forms | {RECOMMENDED: Form(kind="ours", short="kng-residual", make=_residual)}


FORMS: dict[str, Form] = _forms()
"""All rows, in the order of the tables."""
