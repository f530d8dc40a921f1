"""Old addresses of names, for one version: they work, with a :class:`DeprecationWarning` that says where to go.

Modules moved to rooms in version 0.2. An import of an old one gives a module that looks names up in their new homes.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, tuple[str, ...]] = {
    "pdips.bayes.audit_modips": ("pdips_papers.modips.as_printed",),
    "pdips.bayes.columns": ("pdips.posterior.columns",),
    "pdips.bayes.correlations": ("pdips.statistics.laws",),
    "pdips.bayes.diagnostics": ("pdips.posterior.bounds",),
    "pdips.bayes.gallery": ("pdips.posterior.model_file",),
    "pdips.bayes.given": ("pdips.statistics.noisy_model",),
    "pdips.bayes.likelihood": ("pdips.posterior.finished_model",),
    "pdips.bayes.logistic_fit": ("pdips.statistics.logistic",),
    "pdips.bayes.model_file": ("pdips.posterior.model_file", "pdips.posterior.model"),
    "pdips.bayes.modips": ("pdips.statistics.modips",),
    "pdips.bayes.modips_published": ("pdips_papers.modips.as_printed",),
    "pdips.bayes.normal_cells": ("pdips.statistics.laws",),
    "pdips.bayes.posterior": ("pdips.posterior.censored_posterior",),
    "pdips.bayes.pseudo": ("pdips.posterior.pseudo_posterior",),
    "pdips.bayes.ridge_posterior": ("pdips.statistics.regression",),
    "pdips.bayes.settling": ("pdips.statistics.plan",),
    "pdips.bayes.statistics": ("pdips.statistics.statistic",),
    "pdips.bayes.step": ("pdips.quantile.pymc_step",),
    "pdips.bayes.units": ("pdips.statistics.statistic",),
    "pdips.calibration.smallest": ("pdips.calibration.calibrate",),
    "pdips.evaluation.analysis": ("pdips.evaluation.formula",),
    "pdips.evaluation.general": ("pdips.evaluation.evaluate",),
    "pdips.evaluation.inside": ("pdips.evaluation.evaluate",),
    "pdips.evaluation.specific": ("pdips.evaluation.evaluate",),
    "pdips.inference.choosing": ("pdips.inference.rules",),
    "pdips.inference.combining": ("pdips.inference.combine",),
    "pdips.ledger": ("pdips.privacy.ledger",),
    "pdips.mechanisms.consistency": ("pdips.margins.consistency",),
    "pdips.mechanisms.dirichlet": ("pdips.histogram.urns",),
    "pdips.mechanisms.elections": ("pdips.margins.elections",),
    "pdips.mechanisms.histograms": (
        "pdips.histogram.laplace",
        "pdips.histogram.urns",
    ),
    "pdips.mechanisms.layers": ("pdips.margins.domain",),
    "pdips.mechanisms.planning": ("pdips.margins.planning",),
    "pdips.mechanisms.privbayes": ("pdips.bayes_net.privbayes",),
    "pdips.mechanisms.quantile": ("pdips.quantile.kng",),
    "pdips.mechanisms.residual": ("pdips.quantile.kng_residual",),
    "pdips.mechanisms.sanitizer": ("pdips.histogram.laplace",),
    "pdips.mechanisms.tree": ("pdips.margins.steps",),
    "pdips.mechanisms.universal": ("pdips.margins.universal_histogram",),
    "pdips.mechanisms.views": ("pdips.margins.margin_error",),
    "pdips.noise": ("pdips.privacy.noise",),
    "pdips.pairs": ("pdips.audit.neighbour_pairs",),
    "pdips.report.bounds": ("pdips.report.posterior_figures",),
    "pdips.report.meaning": ("pdips.report.card",),
    "pdips.report.posterior": ("pdips.report.posterior_figures",),
    "pdips.schema": ("pdips.data.schema",),
    "pdips.studies": ("pdips_papers",),
    "pdips.studies.execution": ("pdips_papers.harness.run",),
    "pdips.studies.framework": ("pdips_papers.harness.study",),
    "pdips.studies.heavy_forms": ("pdips_papers.kng.heavy_rows",),
    "pdips.studies.heavy_tailed": ("pdips_papers.kng.heavy_tailed",),
    "pdips.studies.voter": ("pdips_papers.steps.voter",),
    "pdips.studies.voter_data": ("pdips_papers.steps.voter_table",),
    "pdips.studies.voter_model": ("pdips_papers.steps.voter",),
    "pdips.studies.voter_simulated": ("pdips_papers.steps.voter_table",),
    "pdips.table": ("pdips.data.table",),
    "pdips.utility.association": ("pdips.evaluation.margins",),
    "pdips.utility.coefficients": ("pdips.evaluation.regression",),
    "pdips.utility.ecdf": ("pdips.evaluation.distribution",),
    "pdips.utility.frames": ("pdips.evaluation.encoding",),
    "pdips.utility.job_flows": ("pdips_papers.kng.job_flows",),
    "pdips.utility.k_marginal": ("pdips.evaluation.margins",),
    "pdips.utility.margins": ("pdips.evaluation.margins",),
    "pdips.utility.pmse": ("pdips.evaluation.propensity",),
    "pdips.utility.propensity": ("pdips.evaluation.propensity",),
    "pdips.utility.regression": ("pdips.evaluation.regression",),
    "pdips.utility.wasserstein": ("pdips.evaluation.distribution",),
}
"""By old module, the modules in which its names are now."""

RENAMED = {
    "pdips.bayes.given.Given": "pdips.statistics.noisy_model.Evidence",
    "pdips.mechanisms.views.margin_errors": "pdips.margins.margin_error.view_errors",
}
"""By old dotted name, the new one, for names that are called otherwise now."""

GONE = ("pdips.bayes", "pdips.mechanisms", "pdips.studies", "pdips.utility")
"""Packages that hold nothing now but old addresses."""


def names_of(old: str, *homes: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module ``old`` whose names are in others now."""

    def look_up(name: str) -> Any:
        if not name.startswith("__"):
            found, where = _found(f"{old}.{name}", name, homes)
            if where:
                message = f"{old}.{name} has moved to {where}; the old name goes with the next version of pdips"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                return found
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return look_up


def _found(dotted: str, name: str, homes: Sequence[str]) -> tuple[Any, str]:
    """Return what an old name stands for and its new dotted name, or None and an empty text."""
    if dotted in RENAMED:
        home, _, name = RENAMED[dotted].rpartition(".")
        homes = (home,)
    for home in homes:
        module = importlib.import_module(home)
        if hasattr(module, name):
            return getattr(module, name), f"{home}.{name}"
    return None, ""


class OldAddresses:
    """Finds modules that have moved. It comes last among the finders, so it is asked for nothing that exists."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load an old module, None for any other."""
        if fullname not in MOVED and fullname not in GONE:
            return None
        # importlib.abc, with its class for loaders, takes long to import
        return ModuleSpec(fullname, self, is_package=fullname in GONE)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to Python to make a module of its usual class."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give an old module its names."""
        homes = MOVED.get(module.__name__, ())
        module.__doc__ = f"Moved to {', '.join(homes)}." if homes else "Modules that have moved."
        module.__dict__["__getattr__"] = names_of(module.__name__, *homes)
