"""Differentially private data synthesis for Bayesian analysts.

Names are imported when they are first used, so that ``import pdips`` is quick and doesn't import PyMC.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pdips.registry import HOMES
from pdips.release import VERSION

if TYPE_CHECKING:
    from pdips.bayes_net.privbayes import PrivBayes as PrivBayes
    from pdips.calibration.calibrate import calibrate as calibrate
    from pdips.data.schema import Column as Column
    from pdips.data.schema import Schema as Schema
    from pdips.data.table import Table as Table
    from pdips.errors import InputError as InputError
    from pdips.errors import RefusedError as RefusedError
    from pdips.histogram.laplace import LaplaceSanitizer as LaplaceSanitizer
    from pdips.histogram.laplace import PerturbedHistogram as PerturbedHistogram
    from pdips.histogram.urns import McClureReiter as McClureReiter
    from pdips.histogram.urns import MultinomialDirichlet as MultinomialDirichlet
    from pdips.histogram.urns import SmoothedHistogram as SmoothedHistogram
    from pdips.margins.pairs import Pairs as Pairs
    from pdips.margins.planning import suggest_layers as suggest_layers
    from pdips.margins.steps import Steps as Steps
    from pdips.margins.universal_histogram import UniversalHistogram as UniversalHistogram
    from pdips.mechanism import Mechanism as Mechanism
    from pdips.outside.laws import DiscreteGaussian as DiscreteGaussian
    from pdips.outside.laws import DiscreteLaplace as DiscreteLaplace
    from pdips.outside.laws import NoisyCounts as NoisyCounts
    from pdips.outside.replays import more_sets as more_sets
    from pdips.posterior.censored_posterior import CensoredPosterior as CensoredPosterior
    from pdips.posterior.pseudo_posterior import PseudoPosterior as PseudoPosterior
    from pdips.privacy.ledger import Ledger as Ledger
    from pdips.privacy.loss import PrivacyLoss as PrivacyLoss
    from pdips.privacy.loss import Spend as Spend
    from pdips.quantile.kng import KNG as KNG
    from pdips.quantile.kng import KNGResidual as KNGResidual
    from pdips.release.release import Release as Release
    from pdips.release.release import RunRecord as RunRecord
    from pdips.scores.published import noisy_likelihood as noisy_likelihood
    from pdips.scores.scores import Scores as Scores
    from pdips.statistics.modips import Modips as Modips
    from pdips.synthesis import synthesize as synthesize

__version__ = VERSION

_HOMES = {
    "Column": "pdips.data.schema",
    "DiscreteGaussian": "pdips.outside.laws",
    "DiscreteLaplace": "pdips.outside.laws",
    "InputError": "pdips.errors",
    "Ledger": "pdips.privacy.ledger",
    "Mechanism": "pdips.mechanism",
    "NoisyCounts": "pdips.outside.laws",
    "PrivacyLoss": "pdips.privacy.loss",
    "RefusedError": "pdips.errors",
    "Release": "pdips.release.release",
    "RunRecord": "pdips.release.release",
    "Schema": "pdips.data.schema",
    "Spend": "pdips.privacy.loss",
    "Table": "pdips.data.table",
    "calibrate": "pdips.calibration.calibrate",
    "more_sets": "pdips.outside.replays",
    "noisy_likelihood": "pdips.scores.published",
    "suggest_layers": "pdips.margins.planning",
    "synthesize": "pdips.synthesis",
}
_HOMES |= {name: f"pdips.{module}" for module, name in (home.split(":") for home, _ in HOMES.values())}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pdips' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
