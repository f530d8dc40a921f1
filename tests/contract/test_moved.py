"""Names under their old addresses: all that the pages, notebooks and models of version 0.1 named or imported."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pdips import moved
from pdips.posterior.model_file import load

NAMED = """
pdips.bayes.audit_modips: published
pdips.bayes.columns: Columns
pdips.bayes.correlations: correlation_factor
pdips.bayes.diagnostics: from_log_likelihood log_likelihood_tree stream_bounds
pdips.bayes.gallery: names path
pdips.bayes.given: Given
pdips.bayes.likelihood: censor
pdips.bayes.logistic_fit: Logistic
pdips.bayes.model_file: Blueprint Source
pdips.bayes.modips: Modips
pdips.bayes.modips_published: redraw_loss
pdips.bayes.normal_cells: cell_means
pdips.bayes.posterior: CensoredPosterior
pdips.bayes.pseudo: PseudoPosterior
pdips.bayes.ridge_posterior: level_shares
pdips.bayes.settling: LEAST_VARIANCE
pdips.bayes.statistics: Counts Products Scatter Sums
pdips.bayes.step: KNormGradientStep knorm_gradient
pdips.bayes.units: unit_of
pdips.calibration.smallest: calibrate
pdips.evaluation.analysis: read_analysis
pdips.evaluation.general: general_utility
pdips.evaluation.inside: evaluate
pdips.evaluation.specific: specific_utility
pdips.inference.choosing: rule_for
pdips.inference.combining: combine
pdips.ledger: Ledger
pdips.mechanisms.consistency: consistent
pdips.mechanisms.dirichlet: McClureReiter MultinomialDirichlet
pdips.mechanisms.elections: one_way_aic
pdips.mechanisms.histograms: PerturbedHistogram SmoothedHistogram
pdips.mechanisms.layers: domain_of
pdips.mechanisms.planning: best_budget margin_errors suggest_layers
pdips.mechanisms.privbayes: PrivBayes
pdips.mechanisms.quantile: KNG
pdips.mechanisms.residual: KNGResidual
pdips.mechanisms.sanitizer: LaplaceSanitizer
pdips.mechanisms.tree: Steps
pdips.mechanisms.universal: UniversalHistogram
pdips.mechanisms.views: margin_errors
pdips.noise: RandomBits
pdips.pairs: Case Pair pair_of_files small_pairs worst_pairs
pdips.privacy: PrivacyLoss Spend compose to_replace_one zcdp
pdips.release: Release RunRecord
pdips.report.bounds: bound_against_value censored_by_draw weights_against_value
pdips.report.meaning: belief_bound
pdips.report.posterior: read_tree
pdips.schema: Column Records Schema
pdips.studies: find
pdips.studies.execution: measure
pdips.studies.framework: Options Study Task
pdips.studies.heavy_forms: Case FORMS PREDICTOR_CAPS TAUS
pdips.studies.heavy_tailed: HeavyTailed
pdips.studies.voter: mechanism paper_figures row_name
pdips.studies.voter_data: paper_table voter_schema
pdips.studies.voter_model: firth_fit
pdips.studies.voter_simulated: simulated_voters
pdips.table: Table decode
pdips.utility.association: chi_square
pdips.utility.coefficients: normalised_rmse standardised_differences
pdips.utility.ecdf: ecdf_distances
pdips.utility.frames: reference
pdips.utility.job_flows: job_flows
pdips.utility.k_marginal: k_marginal
pdips.utility.margins: compare k_way l1
pdips.utility.pmse: pmse standardised_pmse
pdips.utility.propensity: ks_distance specks
pdips.utility.regression: ci_overlap compare_fits fit_logistic
pdips.utility.wasserstein: wasserstein_randomization
"""
"""By module."""

OLD = [(module, name) for module, names in re.findall(r"(?m)^(\S+): (.+)$", NAMED) for name in names.split()]


@pytest.mark.parametrize(("module", "name"), OLD)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_old_name_still_works(module, name):
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize("old", moved.MOVED)
def test_a_module_has_one_address(old):
    assert all(importlib.import_module(home) for home in moved.MOVED[old])
    spec = importlib.util.find_spec(old)
    assert spec is not None
    assert isinstance(spec.loader, moved.OldAddresses), "it exists under the old name: take it out of MOVED"


def test_the_warning_says_where_to_go_and_points_at_who_asked():
    with pytest.warns(DeprecationWarning, match=r"pdips.table.Table has moved to pdips.data.table.Table") as caught:
        from pdips.table import Table
    assert caught[0].filename == __file__
    assert Table.__module__ == "pdips.data.table"


@pytest.mark.parametrize(
    "statement", ["from pdips.table import Tabel", "import pdips.bayes.nothing", "import pdips.no"]
)
def test_what_never_was_is_not_found(statement):
    with pytest.raises(ImportError):
        exec(statement)


def test_new_names_warn_of_nothing():
    code = "import pdips; [getattr(pdips, name) for name in pdips.__all__]"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["bernoulli", "glom", "linear_regression", "slomag"])
def test_a_model_file_with_old_imports_is_read(name, tmp_path):
    text = (Path(__file__).parents[2] / "models" / f"{name}.py").read_text(encoding="utf-8")
    olds = {home: old for old, homes in moved.MOVED.items() for home in homes}
    text, n_old = re.subn(r"(?m)^from (pdips\.\S+) import", lambda m: f"from {olds.get(m[1], m[1])} import", text)
    assert n_old
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.warns(DeprecationWarning, match="has moved to"):
        module, _ = load(tmp_path / f"{name}.py")
    assert module.build_model
