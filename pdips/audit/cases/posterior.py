"""The pairs and events on which posterior mechanisms are audited."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray

from pdips.arrays import IntArray
from pdips.audit.cases.margins import exactly, filled
from pdips.audit.findings import law_of
from pdips.audit.neighbour_pairs import (
    Case,
    Event,
    Pair,
    either,
    sized,
    toward_counts,
    where_allowed,
    with_event,
)
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.groups.group_sums import GroupSums
from pdips.posterior.censored_posterior import CensoredPosterior
from pdips.posterior.columns import Columns
from pdips.posterior.model import Blueprint
from pdips.posterior.private_reference import Stage, counts_of, measure
from pdips.posterior.pseudo_posterior import PseudoPosterior
from pdips.privacy.curator import Curator, Rule, Statistic
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import Plan, Step
from pdips.scores.score_answers import ScoreAnswers
from pdips.scores.scores import Scores

Build = Callable[..., CensoredPosterior]

COIN = Schema.model_validate({"columns": {"x": {"levels": [0, 1]}}})
NUMBER = Schema.model_validate({"columns": {"x": {"lower": -4, "upper": 4}}})
GAPS = Schema.model_validate(
    {"columns": {"x": {"lower": -4, "upper": 4, "missing": True}}}
)
SHARES = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 1}}})
FAR = Schema.model_validate({"columns": {"y": {"lower": -1000, "upper": 1000}}})
GROUPS = Schema.model_validate(
    {"columns": {"g": {"levels": ["a", "b"]}, "ill": {"levels": [0, 1]}}}
)
GROUPED = Schema.model_validate(
    {"columns": {"g": {"levels": ["a", "b"]}, "x": {"lower": -4, "upper": 4}}}
)

STEEP = 1_000.0  # Makes every cell of a coin's grid one that is sure of its side
# Nats by which the crowd of a pair makes one side lighter: its mass is 2e-16, and 60
# would be cut off
LIGHT = 36
CROWD = 12  # Records of the pair on which two stages are audited


def switch(data: Columns, schema: Schema) -> pm.Model:
    """Return a coin that falls on one side nearly always, which one being unknown."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.Bernoulli("x", logit_p=STEEP * theta, observed=data["x"])
    return model


def coin(data: Columns, schema: Schema) -> pm.Model:
    """Return a coin of unknown bias."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 2)
        pm.Bernoulli("x", logit_p=theta, observed=data["x"])
    return model


def fair(data: Columns, schema: Schema) -> pm.Model:
    """Return a coin that is known to be nearly fair: the scores of both sides are as
    long at all parameters that are likely.
    """
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 0.1)
        pm.Bernoulli("x", logit_p=theta, observed=data["x"])
    return model


def mean(data: Columns, schema: Schema) -> pm.Model:
    """Return numbers of known deviation about an unknown mean."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("x", mu, 1, observed=data["x"])
    return model


def gaps(data: Columns, schema: Schema) -> pm.Model:
    """Return numbers about an unknown mean, half of which are missing."""
    with mean(data, schema) as model:
        pm.Bernoulli("x_missing", 0.5, observed=data["x_missing"])
    return model


def shares(data: Columns, schema: Schema) -> pm.Model:
    """Return the beta model of Hu et al. (2022) with its priors."""
    with pm.Model() as model:
        phi = pm.Uniform("phi", 0, 1)
        lam = pm.Pareto("lam", alpha=1.5, m=0.1)
        pm.Beta("y", lam * phi, lam * (1 - phi), observed=data["y"])
    return model


def groups(data: Columns, schema: Schema) -> pm.Model:
    """Return two groups, each with a risk of its own."""
    with pm.Model() as model:
        risk = pm.Normal("risk", 0, 2, shape=2)
        g = pm.Bernoulli("g", 0.5, observed=data["g"])
        pm.Bernoulli("ill", logit_p=risk[g], observed=data["ill"])
    return model


def ill_given_group(data: Columns, schema: Schema) -> pm.Model:
    """Return a risk in each group; groups are confidential, and have no model."""
    with pm.Model() as model:
        risk = pm.Normal("risk", 0, 2, shape=2)
        pm.Bernoulli("ill", logit_p=risk[data["g"]], observed=data["ill"])
    return model


def mean_given_group(data: Columns, schema: Schema) -> pm.Model:
    """Return a mean in each group; groups are confidential, and have no model."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=2)
        pm.Normal("x", mu[data["g"]], 1, observed=data["x"])
    return model


def normal(data: Columns, schema: Schema) -> pm.Model:
    """Return the model of the pseudo posterior: records of known deviation 1 about an
    unknown mean.
    """
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 10)
        pm.Normal("y", theta, 1, observed=data["y"])
    return model


@dataclass(frozen=True, kw_only=True)
class Staged(CensoredPosterior):
    """A release in two stages, whose second stage is followed at one outcome of the
    first only.
    """

    # That outcome: the noisy count of each cell. Those that are asked for are what they
    # are
    noisy: tuple[int, ...]

    def _followed(self, curator: Curator, noisy: IntArray) -> IntArray:
        return np.array(self.noisy)

    def stage(self, plan: Plan, curator: Curator) -> Stage:
        """Ask for the noisy counts, and return what follows from that outcome, which is
        worked out once.
        """
        tried = self.space(plan.schema).tried
        n_records = curator.n_records if plan.n_public else None
        key = ("followed", self.noisy, self.price, n_records)
        if key in tried:
            measure(plan, curator, partial(self._followed, curator))
        return tried.once(key, partial(super().stage, plan, curator))


@dataclass(frozen=True, kw_only=True)
class AlongTable(Scores):
    """Scores whose references are those that follow from one table without noise,
    whatever table is asked about.
    """

    along: Table

    @classmethod
    def of(cls, mechanism: Scores, along: Table) -> "AlongTable":
        settings = {
            setting.name: getattr(mechanism, setting.name)
            for setting in fields(mechanism)
        }
        return cls(**settings, along=along)

    @property
    def stands_for(self) -> Scores:
        """The mechanism itself, whose references follow from noisy answers."""
        return Scores(
            **{setting.name: getattr(self, setting.name) for setting in fields(Scores)}
        )

    def _rehearsed(self, schema: Schema) -> Blueprint:
        return self.space(schema)  # nothing is drawn

    def _asked(self, curator: Curator, step: Step, statistic: Statistic) -> IntArray:
        curator.count(step, statistic)
        return statistic(self.along)

    def ask(self, plan: Plan, curator: Curator) -> ScoreAnswers:
        if self.space(plan.schema).covariates:
            curator = _AlongCurator(curator, self.along)  # type: ignore[assignment]
        return super().ask(plan, curator)


class _AlongCurator:
    """A curator whose answers are those of one table without noise, for questions that
    a mechanism puts to it without a method of its own.
    """

    def __init__(self, curator: Curator, along: Table) -> None:
        self._curator = curator
        self._along = along

    def __getattr__(self, name: str) -> Any:
        return getattr(self._curator, name)

    def count(self, step: Step, statistic: Statistic) -> IntArray:
        self._curator.count(step, statistic)
        return statistic(self._along)

    def decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        return rule(noisy)  # without noise: it is no choice


def censored(build: Build) -> Iterator[Case]:
    """Yield the cases of the censored posterior, with models of their own."""
    build = partial(sized, build, CROWD)
    mechanism = build(model=switch)
    if getattr(mechanism.model, "build", None) is not switch:
        raise InputError(
            "the audit of censored-posterior has models of its own; leave model out"
        )
    if mechanism.sampler not in ("auto", "grid"):
        raise InputError(
            f"the exact grid can be audited, and sampler = {mechanism.sampler} can't"
        )
    if mechanism.kind == "pure":
        yield from _of_a_draw(build)
        flip = _flip(coin_table, CROWD, mechanism.neighbours)
        yield from exactly(_staged(build, share="1/2"), [flip])
    counted = _staged(build, share="0.999")
    if counted is not None:
        pair = _flip(coin_table, CROWD, counted.neighbours)
        pair = toward_counts(pair, counts_of(pair.first), counts_of(pair.second))
        event = partial(_of_counts, pair)
        yield Case(counted, with_event(pair, event, pair.event_name))
    of_switch = partial(build, model=switch)
    plain = where_allowed(of_switch, centre="reference", reference="prior")
    if plain is not None:
        yield Case(plain, _flip(coin_table, _crowd(plain, 3), plain.neighbours))


def _of_a_draw(build: Build) -> Iterator[Case]:
    """Yield the cases of a draw by itself, exactly."""
    for model, table_of, reference in (
        (switch, coin_table, "prior"),
        (coin, coin_table, {"theta": 0.0}),
        (mean, mean_table, {"mu": 0.0}),
        (gaps, gaps_table, {"mu": 0.0}),
    ):
        of_model = partial(build, model=model)
        mechanism = where_allowed(of_model, centre="reference", reference=reference)
        if mechanism is not None:
            pair = _flip(table_of, _crowd(mechanism, LIGHT), mechanism.neighbours)
            yield Case(mechanism, pair, "exact")
    zero = where_allowed(partial(build, model=shares), centre="zero")
    if zero is not None and zero.neighbours == "replace-one":
        yield Case(zero, three_shares(), "exact")


def _of_counts(pair: Pair, rows: NDArray[Any]) -> Any:
    """Return the pair's event for the noisy counts, which come first; the cells that
    are drawn come after them.
    """
    n_counts = len(counts_of(pair.first))
    return pair.event(rows[:, :n_counts]) if pair.event else None


def _staged(build: Build, share: str) -> Staged | None:
    """Return a release in two stages, at an outcome that the first table of a pair is
    likelier to give.
    """
    mechanism = where_allowed(partial(build, model=coin), centre="staged", share=share)
    if mechanism is None:
        return None
    settings = {
        setting.name: getattr(mechanism, setting.name) for setting in fields(mechanism)
    }
    return Staged(**settings, noisy=(CROWD - 1, 2))


def _crowd(mechanism: CensoredPosterior, nats: float) -> int:
    """Return how many records make one side of a coin lighter by so much."""
    return max(int(nats / (2 * mechanism.window(COIN))), 1)


def coin_table(records: list[float]) -> Table:
    return Table(pd.DataFrame({"x": np.array(records, dtype=np.int64)}), COIN)


def mean_table(records: list[float]) -> Table:
    """Return a table of numbers, 4 for each 1 and -4 for each 0."""
    return Table(pd.DataFrame({"x": 8.0 * np.array(records) - 4}), NUMBER)


def gaps_table(records: list[float]) -> Table:
    """Return a table of numbers, 4 for each 1 and a missing one for each 0."""
    numbers = [4.0 if record else None for record in records]
    return Table(pd.DataFrame({"x": numbers}), GAPS)


def _flip(
    table_of: Callable[[list[float]], Table], crowd: int, neighbours: Neighbours
) -> Pair:
    """Return the pair in which one of a crowd goes to the other side, or a record on
    the other side leaves.
    """
    return either(
        "outlier: one of a crowd goes to the other side",
        table_of,
        [0.0] * crowd,
        1.0,
        0.0,
        neighbours,
    )


def three_shares(event: Event | None = None) -> Pair:
    """Return the pair on which a posterior without a centre loses most: a share goes
    from .7 to nearly 0.
    """
    first = filled(SHARES, [0.8, 0.8, 0.7])
    second = filled(SHARES, [0.8, 0.8, 1e-6])
    event_name = "p(.7) >= e^(1/2) and p(1e-6) <= e^(-1/2)"
    return Pair(
        "three shares, one of which goes from .7 to nearly 0",
        first,
        second,
        "replace-one",
        event,
        event_name,
    )


def scores(build: Callable[..., Scores]) -> Iterator[Case]:
    """Yield the cases of scores, with models of their own: one record is as extreme as
    it can be.

    It goes from one bound to the other, from a bound to a missing number, from where
    its likelihood is 0 at any parameters, or to a combination that no other has.
    """
    for model, name, table_of, rest, one, other in _extremes():
        mechanism = build(model=model)
        if getattr(mechanism.model, "build", None) is not model:
            raise InputError(
                "the audit of scores has models of its own; leave model out"
            )
        pair = either(name, table_of, rest, one, other, mechanism.neighbours)
        if mechanism.kind == "pure":
            yield Case(AlongTable.of(mechanism, pair.first), pair, "exact")
    pair = _flip(coin_table, CROWD, mechanism.neighbours)
    once = where_allowed(partial(build, model=fair), score_rounds=1)
    counted = AlongTable.of(once or build(model=fair), pair.first)
    # the sum of scores, which has most of the budget, by itself
    if counted.kind == "pure":
        first = law_of(counted, pair.first).outcomes[0].statistics
        second = law_of(counted, pair.second).outcomes[0].statistics
        pair = toward_counts(pair, first[-1:], second[-1:])
    yield Case(counted, pair)


def _extremes() -> Iterator[tuple[Any, ...]]:
    """Yield models and, for each, a pair in which one record is as extreme as can be:
    its name, what makes a table of records, the others, and the record before and
    after.
    """
    name = "one record goes from bound to bound"
    yield mean, name, mean_table, [0.5] * CROWD, 1.0, 0.0
    name = "one record goes from a bound to a missing number"
    yield gaps, name, gaps_table, [0.0] * CROWD, 1.0, 0.0
    name = "one record has likelihood 0"
    yield shares, name, partial(filled, SHARES), [0.2, 0.4] * 3, 0.0, 0.9
    name = "one record is in a combination that nobody else is in"
    crowd = [("a", 0)] * 4 + [("b", 1)] * 4
    yield groups, name, partial(filled, GROUPS), crowd, ("b", 0), ("a", 0)
    name = "one record goes to another group, which is confidential"
    yield ill_given_group, name, partial(filled, GROUPS), crowd, ("b", 0), ("a", 1)
    name = "one record goes from bound to bound of a confidential group"
    middle = [("a", 0.0), ("b", 0.0)] * 3
    table_of = partial(filled, GROUPED)
    yield mean_given_group, name, table_of, middle, ("a", 4.0), ("b", -4.0)


def group_sums(build: Callable[..., GroupSums]) -> Iterator[Case]:
    """Yield the cases of group sums: a person goes to another group, goes from one end
    of the outcome's range to the other in its own, or does both.
    """
    crowd = [("a", 0)] * 4 + [("b", 1)] * 3
    moves = {
        "one record goes to another group": (("b", 0), ("a", 0)),
        "one record stays in its group and goes from end to end": (("b", 0), ("b", 1)),
        "one record goes to another group and end": (("a", 1), ("b", 0)),
    }
    mechanism = build()
    pairs = []
    for name, (one, other) in moves.items():
        table_of = partial(filled, GROUPS)
        pairs.append(either(name, table_of, crowd, one, other, mechanism.neighbours))
    numbers = [("a", 0.0), ("b", 1.0)] * 3
    name = "one record goes from bound to bound of its group"
    table_of = partial(filled, GROUPED)
    ends = (("a", 4.0), ("a", -4.0))
    pairs.append(either(name, table_of, numbers, *ends, mechanism.neighbours))
    yield from exactly(mechanism, pairs)
    yield Case(mechanism, pairs[0])


def pseudo(build: Callable[..., PseudoPosterior]) -> Iterator[Case]:
    """Yield the cases of the pseudo posterior, with a model of their own; it is caught
    on all of them.

    Its weights make an outlier so risky that no other record counts, or all others so
    harmless that they count in full.
    """
    mechanism = build(model=normal)
    if mechanism.weights == "weighted-e":
        pair = beside("an outlier among equal records", 400.0, [0.0] * 19)
        event_name = "the mean is more than 3 from 0"
        pair = with_event(pair, lambda rows: np.abs(rows[:, 0]) > 3, event_name)
    else:
        rest = [0.0] * 13 + [5.0] * 6
        pair = beside("an outlier beside a risky minority", 400.0, rest)
        pair = with_event(pair, lambda rows: rows[:, 0] > 1.2, "the mean is above 1.2")
    yield Case(mechanism, pair)


def beside(name: str, outlier: float, rest: list[float]) -> Pair:
    """Return the pair in which an outlier goes to 0, where others are."""
    first = filled(FAR, [outlier, *rest])
    return Pair(name, first, filled(FAR, [0.0, *rest]), "replace-one")
