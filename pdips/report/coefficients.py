"""The model's coefficients as card and report list them: from the tree that a release
publishes, and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pdips.arrays import FloatArray, finite
from pdips.registry import load
from pdips.release.documents import PrivacyDocument, StatedAnalysis, read_bytes
from pdips.release.folder import bytes_digest
from pdips.release.public_draws import (
    Contradiction,
    contradiction,
    held_back_by_priors,
)
from pdips.release.release import TREE_FILE
from pdips.report.posterior_figures import draws_of_parameter

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# Imports xarray, which a page of a release without a model does without
READ_TREE = "pdips.release.tree:read_tree"
MOST_LISTED = 60
# Numbers of a variable; effects of more groups are in a table of their own
MOST_SUMMARISED = 2_000
MOST_DRAWN = 3  # Figures of coefficients that are as their prior
INSIDE = 0.95
# What the posterior group says of the question that it answers
QUESTION = ("question", "claim", "probability", "pooled_with", "meaning")
# Share of the prior's standard deviation from which on nothing was learned
UNLEARNED = 0.9


@dataclass(frozen=True, kw_only=True)
class ListedCoefficient:
    """A parameter of the model, or what follows from it, as its posterior has it."""

    name: str
    mean: float | None
    sd: float | None
    lower: float | None  # ends of the shortest interval of 95 %
    upper: float | None
    ess: float | None
    mcse: float | None  # Monte Carlo standard error of the mean
    rhat: float | None
    of_prior: float | None  # its standard deviation, as a share of the prior's

    @property
    def is_prior(self) -> bool:
        """Whether nothing was learned of it."""
        return self.of_prior is not None and self.of_prior > UNLEARNED


def coefficients(
    folder: Path, release: PrivacyDocument
) -> tuple[list[ListedCoefficient], "xr.DataTree | None"]:
    """Return the coefficients of a release in a folder, and its tree; none if it
    publishes no posterior, or the file isn't the one that was published.
    """
    digest = (release.digests or {}).get(TREE_FILE)
    path = folder / TREE_FILE
    if digest is None or not path.is_file():
        return [], None
    content = read_bytes(path)
    if bytes_digest(content) != digest:
        return [], None
    tree = load(READ_TREE)(content)
    return [*_summarised(tree)], tree


@dataclass(frozen=True, kw_only=True)
class AnsweredAnalysis:
    """An analysis that was named before a release, with its answer."""

    stated: StatedAnalysis
    coefficients: list[ListedCoefficient]  # none where its folder isn't there
    contradicted: Contradiction | None
    held_back: list[str]  # variables that their priors hold back

    @property
    def unlearned(self) -> list[str]:
        """The coefficients of which nothing was learned."""
        return [each.name for each in self.coefficients if each.is_prior]


def answered_analyses(
    folder: Path, release: PrivacyDocument
) -> Iterator[AnsweredAnalysis]:
    """Yield the analyses of a release in a folder, with their coefficients."""
    for stated in release.analyses:
        own = folder / stated.folder
        part = PrivacyDocument.found(own)
        listed: list[ListedCoefficient] = []
        tree = None
        if part is not None:
            listed, tree = coefficients(own, part)
        yield AnsweredAnalysis(
            stated=stated,
            coefficients=listed,
            contradicted=contradicted(tree),
            held_back=held_back_by_priors(tree),
        )


def contradicted(tree: "xr.DataTree | None") -> Contradiction | None:
    """Return what noisy answers say against the model; None where they don't contradict
    it, or nobody looked.
    """
    return None if tree is None else contradiction(tree["posterior"].attrs)


def question(tree: "xr.DataTree | None") -> dict[str, str]:
    """Return what is said of the question that a release answers, by name, empty where
    it wasn't asked beside another release.
    """
    if tree is None:
        return {}
    about = tree["posterior"].attrs
    return {name: str(about[name]) for name in QUESTION if name in about}


def _summarised(tree: "xr.DataTree") -> Iterator[ListedCoefficient]:
    table = _summary(tree, "posterior")
    priors: dict[str, float] = {}
    if "prior" in tree.children:
        spread = _summary(tree, "prior")["sd"]
        priors = {str(name): float(sd) for name, sd in spread.items()}
    for name, row in table.iterrows():
        numbers = {key: finite(float(value)) for key, value in row.items()}
        prior = priors.get(str(name), 0.0)
        sd = numbers["sd"]
        yield ListedCoefficient(
            name=str(name),
            mean=numbers["mean"],
            sd=sd,
            lower=numbers["hdi95_lb"],
            upper=numbers["hdi95_ub"],
            ess=numbers["ess_bulk"],
            mcse=numbers["mcse_mean"],
            rhat=numbers["r_hat"],
            of_prior=sd / prior if prior and sd is not None else None,
        )


def _summary(tree: "xr.DataTree", group: str) -> "pd.DataFrame":
    """Return ArviZ's summary of a group, a row for each number."""
    summary: Any = import_module("arviz_stats").summary
    listed = []
    for name, array in tree[group].data_vars.items():
        n_draws = array.sizes["chain"] * array.sizes["draw"]
        if array.size <= MOST_SUMMARISED * n_draws:
            listed.append(name)
    with np.errstate(all="ignore"):
        table: pd.DataFrame = summary(
            tree, listed, group=group, ci_prob=INSIDE, ci_kind="hdi", round_to="none"
        )
    return table


def figures_of_priors(
    listed: Sequence[ListedCoefficient], tree: "xr.DataTree | None"
) -> list[tuple[str, str]]:
    """Return figures of the first coefficients that are as their prior, each with its
    name: draws, and the prior filled.
    """
    if tree is None:
        return []
    unlearned = [each.name for each in listed if each.is_prior][:MOST_DRAWN]
    draws = dict(entries(tree["posterior"].to_dataset()))
    priors = dict(entries(tree["prior"].to_dataset())) if unlearned else {}
    figures = []
    for place, name in enumerate(unlearned):
        if name in draws and name in priors:
            key = f"prior of coefficient {place}"
            all_chains = draws[name].reshape(1, -1)
            figure = draws_of_parameter(all_chains, [], name, key, priors[name])
            figures.append((name, figure))
    return figures


def entries(group: "xr.Dataset") -> Iterator[tuple[str, FloatArray]]:
    """Yield the numbers of a group with the names that ArviZ gives them, as draws of
    shape (chains, draws).
    """
    arviz: Any = import_module("arviz_base")
    label_of = arviz.labels.BaseLabeller().make_label_flat
    in_order = group.transpose("chain", "draw", ...)
    for name, labels, place, values in arviz.xarray_var_iter(in_order):
        yield label_of(name, labels, place), values
