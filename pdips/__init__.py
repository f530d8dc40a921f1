"""Differentially private data synthesis for Bayesian analysts.

Names are imported when they are first used, so that ``import pdips`` is quick and doesn't import PyMC.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdips.bayes.modips import Modips as Modips
    from pdips.bayes.posterior import CensoredPosterior as CensoredPosterior
    from pdips.bayes.pseudo import PseudoPosterior as PseudoPosterior
    from pdips.calibration.smallest import calibrate as calibrate
    from pdips.errors import InputError as InputError
    from pdips.errors import RefusedError as RefusedError
    from pdips.ledger import Ledger as Ledger
    from pdips.mechanism import Mechanism as Mechanism
    from pdips.mechanisms.dirichlet import McClureReiter as McClureReiter
    from pdips.mechanisms.dirichlet import MultinomialDirichlet as MultinomialDirichlet
    from pdips.mechanisms.histograms import PerturbedHistogram as PerturbedHistogram
    from pdips.mechanisms.histograms import SmoothedHistogram as SmoothedHistogram
    from pdips.mechanisms.planning import suggest_layers as suggest_layers
    from pdips.mechanisms.privbayes import PrivBayes as PrivBayes
    from pdips.mechanisms.quantile import KNG as KNG
    from pdips.mechanisms.residual import KNGResidual as KNGResidual
    from pdips.mechanisms.sanitizer import LaplaceSanitizer as LaplaceSanitizer
    from pdips.mechanisms.tree import Steps as Steps
    from pdips.mechanisms.universal import UniversalHistogram as UniversalHistogram
    from pdips.privacy import PrivacyLoss as PrivacyLoss
    from pdips.privacy import Spend as Spend
    from pdips.release import Release as Release
    from pdips.release import RunRecord as RunRecord
    from pdips.schema import Column as Column
    from pdips.schema import Schema as Schema
    from pdips.table import Table as Table

__version__ = "0.2.0"

_HOMES = {
    "CensoredPosterior": "pdips.bayes.posterior",
    "Column": "pdips.schema",
    "InputError": "pdips.errors",
    "KNG": "pdips.mechanisms.quantile",
    "KNGResidual": "pdips.mechanisms.residual",
    "LaplaceSanitizer": "pdips.mechanisms.sanitizer",
    "Ledger": "pdips.ledger",
    "McClureReiter": "pdips.mechanisms.dirichlet",
    "Mechanism": "pdips.mechanism",
    "Modips": "pdips.bayes.modips",
    "MultinomialDirichlet": "pdips.mechanisms.dirichlet",
    "PerturbedHistogram": "pdips.mechanisms.histograms",
    "PrivBayes": "pdips.mechanisms.privbayes",
    "PrivacyLoss": "pdips.privacy",
    "PseudoPosterior": "pdips.bayes.pseudo",
    "RefusedError": "pdips.errors",
    "Release": "pdips.release",
    "RunRecord": "pdips.release",
    "Schema": "pdips.schema",
    "SmoothedHistogram": "pdips.mechanisms.histograms",
    "Spend": "pdips.privacy",
    "Steps": "pdips.mechanisms.tree",
    "Table": "pdips.table",
    "UniversalHistogram": "pdips.mechanisms.universal",
    "calibrate": "pdips.calibration.smallest",
    "suggest_layers": "pdips.mechanisms.planning",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pdips' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
