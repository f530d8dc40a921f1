"""Requests of the models that are compiled: eight of ``models/``."""

from typing import Any

from benchmarks.campaign.chance import Chance
from benchmarks.campaign.options import Options, random_epsilon
from benchmarks.campaign.schemas import Content

NUMBER: Content = {"lower": 0.5, "upper": 10.5}
COUNT: Content = {"lower": 0, "upper": 12, "integer": True}
GROUPS: Content = {"levels": ["a", "b", "c"], "public": True}
LEVELS: Content = {"levels": ["x", "y", "z"]}

# pseudo-posterior bounds nothing, so no ledger holds it
NUTS = ("scores", "censored-posterior")
COLUMNS: dict[str, tuple[tuple[str, ...], Content]] = {
    "normal": (NUTS, {"y": NUMBER}),
    "beta": (NUTS, {"y": NUMBER}),
    "lognormal_regression": (NUTS, {"y": NUMBER, "g": GROUPS}),
    "hierarchical_normal": (NUTS, {"y": NUMBER, "g": GROUPS}),
    "negative_binomial": (NUTS, {"y": COUNT, "g": GROUPS}),
    "normal_moments": (("modips",), {"y": NUMBER}),
    "linear_regression": (("modips",), {"y": NUMBER, "g": GROUPS}),
    "multinomial": (("modips",), {"a": LEVELS, "b": LEVELS | {"levels": [1, 2]}}),
}
"""By model the mechanisms that take it, and a schema that fits it."""


def random_model(chance: Chance) -> tuple[str, Content, Options]:
    """Return a mechanism, a schema and the options of a request with a model."""
    model = chance.one(list(COLUMNS))
    mechanisms, columns = COLUMNS[model]
    mechanism = chance.one(mechanisms)
    content: Content = {"columns": {n: dict(each) for n, each in columns.items()}}
    if chance.maybe(0.15) and model == "lognormal_regression":
        content["columns"]["y"]["missing"] = True
    if chance.maybe(0.1):
        content["records"] = {"person": "person", "max_per_person": 2}
    options: Options = {"epsilon": random_epsilon(chance), "model": model}
    if chance.maybe(0.05 if "g" in columns else 0.5):
        options["neighbours"] = "add-remove"
        options["n_records"] = chance.one([3, 50, 300])
    if chance.maybe(0.6):
        options["n_sets"] = chance.one([1, 2, 5])
    options |= _more(chance, mechanism)
    return mechanism, content, options


def _more(chance: Chance, mechanism: str) -> Options:
    more: Options = {}
    if mechanism == "modips":
        chance.option(more, "likelihood", "noise-aware", "plug-in")
        chance.option(more, "split", "once", "per-set")
    elif mechanism == "scores" or chance.maybe(0.5):
        short: dict[str, Any] = {"draws": 300, "tune": 300, "n_chains": 2}
        more |= short | ({} if mechanism == "scores" else {"sampler": "nuts"})
    if chance.maybe(0.4):
        more["delta"] = "1e-6"
    if mechanism == "scores":
        chance.option(more, "score_rounds", 1, 3)
    if mechanism == "censored-posterior":
        chance.option(more, "clip", "hard", "tanh", "algebraic")
        chance.option(more, "weights", "none")
    return more
