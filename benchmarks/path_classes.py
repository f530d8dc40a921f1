"""The classes of mechanisms, settings and schemas on which paths are followed: each at
caps of 1, 2 and 3, under the relations that it takes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.random_schemas import RandomSchemas
from pdips.audit.cases import posterior, statistics
from pdips.audit.cases.margins import FOUR, HOMES, THREE, TWO
from pdips.audit.cases.quantile import ABSENT, FIRMS, WAGES
from pdips.audit.path_loss import PathLoss, Unit, losses
from pdips.audit.random_pairs import random_pair
from pdips.data.schema import Records, Schema
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.loss import Neighbours
from pdips.quantile.quantile_plan import SCHEMES
from pdips.registry import find
from pdips.statistics.model import StatisticModel
from pdips.statistics.statistic import Scatter

CAPS = (1, 2, 3)
Least = Mapping[str, float]
TIGHT = 1 - 1e-9
LOUD = (
    30.0  # Standard deviations of noise in each number: all intervals are looked into
)

BY_KIND: dict[str, dict[str, Any]] = {"pure": {}, "zcdp": {"delta": "1e-6"}}
"""For each kind of loss the settings that choose it."""

ELECTED: Least = {"replace-one": 0.9, "add-remove": 0.9}
"""A tenth of the price is for elections, whose scores move by less on small tables."""

PAIRS: dict[str, Any] = {"measure": "pairs"}
VIEWS: dict[str, Any] = {"measure": "views"}

CELLS = RandomSchemas(("bins", "missing"))
ZEROS = RandomSchemas(("bins", "missing", "zeros"))
RULES = RandomSchemas(("rules", "missing"))
PUBLIC = RandomSchemas(("bins", "public", "missing"))
TOTALS = RandomSchemas(("totals", "missing"))
NUMBERS = RandomSchemas(("numbers", "missing"))
GROUPS = RandomSchemas(("groups", "missing"))
WEIGHTS = RandomSchemas(("missing",), weight=True)
THREE_COLUMNS = Schema.model_validate(
    {"columns": {name: {"levels": [0, 1, 2]} for name in "abc"}}
)
STRATA = Schema.model_validate(
    {
        "columns": {
            "g": {"levels": ["a", "b"], "public": True},
            "wage": {"lower": 0, "upper": 1000, "bins": 100},
        }
    }
)


@dataclass(frozen=True, kw_only=True)
class PathClass:
    """A mechanism with its settings, and the schemas on which it is tried.

    Parameters
    ----------
    mechanism : str
        Its registered name.
    settings : dict
        Beside epsilon and neighbours.
    schemas : RandomSchemas or Schema
        Random ones, or one at each cap.
    label : str
        What is said of the schemas.
    least : dict of str to float
        By relation, the ratio of loss to price that pairs must show at least where it
        isn't 1; nothing shows more than 1.
    loudness : float
        Of answers.
    share : float
        Part of the usual number of pairs, where they take long.
    caps : tuple of int
        That the schemas take.
    quick : tuple of int
        Those that quick tests try.
    """

    mechanism: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    schemas: RandomSchemas | Schema = CELLS
    label: str = "levels and bins"
    least: Least = field(default_factory=dict)
    loudness: float = 0.0
    share: float = 1.0
    caps: tuple[int, ...] = CAPS
    quick: tuple[int, ...] = CAPS

    @property
    def relations(self) -> tuple[Neighbours, ...]:
        """The relations that the mechanism takes with these schemas."""
        relations: tuple[Neighbours, ...] = find(self.mechanism).offers.relations
        if isinstance(self.schemas, RandomSchemas):
            has_public = "public" in self.schemas.features
        else:
            has_public = bool(self.schemas.public_columns)
        if not has_public and self.settings.get("utility") != "bic":
            return relations
        return tuple(relation for relation in relations if relation == "replace-one")

    def __str__(self) -> str:
        words = [self.mechanism]
        for name, value in self.settings.items():
            if name not in ("model", "reference"):
                words.append(f"{name}={_spelt(value)}")
        return " ".join([*words, f"({self.label})"])

    def build(self, neighbours: Neighbours, epsilon: Any = 1) -> Mechanism:
        """Return the mechanism."""
        kind = find(self.mechanism)
        settings = dict(self.settings)
        if neighbours == "add-remove" and "n_records" in kind.__dataclass_fields__:
            settings.setdefault("n_records", 3)
        mechanism: Mechanism = kind(epsilon=epsilon, neighbours=neighbours, **settings)
        return mechanism

    def schema(self, cap: int, rng: np.random.Generator) -> Schema:
        """Return a schema whose persons have up to ``cap`` records."""
        if isinstance(self.schemas, RandomSchemas):
            return self.schemas.draw(rng, cap)
        if self.schemas.members is not None:
            return self.schemas
        person = "person" if cap > 1 and rng.random() < 0.5 else None
        records = Records(max_per_person=cap, person=person)
        return self.schemas.model_copy(update={"records": records})

    def losses(
        self,
        neighbours: Neighbours,
        cap: int,
        n_pairs: int,
        seed: int = 0,
        unit: Unit | None = None,
    ) -> Iterator[PathLoss]:
        """Yield the losses of some pairs, half of them with all records of a person far
        away: one schema for every two.
        """
        mechanism = self.build(neighbours)
        for number in range(-(-n_pairs // 2)):
            rng = np.random.default_rng([seed, cap, number])
            schema = self.schema(cap, rng)
            try:
                plan = mechanism.plan(schema)
            except InputError:  # some settings need more columns than a schema has
                continue
            for far in (True, False)[: n_pairs - 2 * number]:
                yield losses(
                    mechanism,
                    random_pair(schema, neighbours, rng, far=far),
                    seed=number,
                    loudness=self.loudness if far else 0.0,
                    level=4.0,
                    plan=plan,
                    unit=unit,
                )


def _spelt(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _of_scatter(schema: Schema) -> dict[str, Any]:
    return {"squares": Scatter(of="y")}


def _statistics(declared: Any) -> StatisticModel:
    """Return a model that says nothing of some statistics."""
    return StatisticModel(
        declared, statistics.no_model, statistics.no_records, name=declared.__name__
    )


def _by_kind(
    settings: Mapping[str, Any],
    schemas: RandomSchemas | Schema,
    label: str,
    least: Mapping[str, Least] | None = None,
    *,
    mechanism: str = "margins",
    **more: Any,
) -> list[PathClass]:
    """Return a class with Laplace noise and one with Gaussian noise."""
    classes = []
    for kind, noise in BY_KIND.items():
        path_class = PathClass(
            mechanism=mechanism,
            settings={**settings, **noise},
            schemas=schemas,
            label=label,
            least=(least or {}).get(kind, {}),
            **more,
        )
        classes.append(path_class)
    return classes


def _histograms() -> Iterator[PathClass]:
    for name in ("laplace-sanitizer", "perturbed-histogram"):
        yield PathClass(mechanism=name)
        yield PathClass(mechanism=name, schemas=ZEROS, label="zeros")
        yield PathClass(mechanism=name, schemas=RULES, label="rules")
        yield PathClass(mechanism=name, schemas=PUBLIC, label="public")
        per_set = {"n_sets": 3, "split": "per-set"}
        yield PathClass(mechanism=name, settings=per_set)
    yield PathClass(mechanism="universal-histogram")
    yield PathClass(mechanism="universal-histogram", schemas=ZEROS, label="zeros")
    cut = {"attribute": "a", "fan_out": 2}
    yield PathClass(mechanism="universal-histogram", settings=cut)
    per_set = {"n_sets": 2, "split": "per-set"}
    yield PathClass(
        mechanism="universal-histogram",
        settings=per_set,
        schemas=PUBLIC,
        label="public",
    )
    for name in ("mcclure-reiter", "multinomial-dirichlet", "smoothed-histogram"):
        for schema, label in ((TWO, "two levels"), (THREE, "three levels")):
            # urns of few records lose less than their bound
            least = {"replace-one": 0.75, "add-remove": 0.4}
            yield PathClass(mechanism=name, schemas=schema, label=label, least=least)


def _views() -> Iterator[PathClass]:
    for noise in BY_KIND.values():
        for schemas, label in (
            (CELLS, "levels and bins"),
            (ZEROS, "zeros"),
            (RULES, "rules"),
            (PUBLIC, "public"),
            (TOTALS, "totals"),
        ):
            yield PathClass(
                mechanism="margins",
                settings={**VIEWS, **noise},
                schemas=schemas,
                label=label,
            )
    per_set = {"n_sets": 2, "split": "per-set"}
    yield PathClass(mechanism="margins", settings={**VIEWS, **per_set})
    posterior = {"n_sets": 2, "sets": "posterior"}
    yield PathClass(
        mechanism="margins", settings={**VIEWS, **posterior, **BY_KIND["zcdp"]}
    )


def _trees() -> Iterator[PathClass]:
    for schemas, label in (
        (CELLS, "levels and bins"),
        (ZEROS, "zeros"),
        (RULES, "rules"),
        (PUBLIC, "public"),
    ):
        yield PathClass(
            mechanism="steps",
            settings={"layers": 1},
            schemas=schemas,
            label=label,
            least=ELECTED,
        )
    yield PathClass(
        mechanism="steps",
        settings={"layers": 1, "n_sets": 2, "split": "per-set"},
        least=ELECTED,
    )
    yield PathClass(mechanism="steps", settings={"order": ("a",), "layers": 1})
    leaves: dict[str, Any] = {
        "order": ("a", "b"),
        "budget": "half-to-leaves",
        "below": "views",
    }
    yield PathClass(
        mechanism="steps",
        settings=leaves,
        schemas=THREE_COLUMNS,
        label="three columns",
    )
    yield PathClass(
        mechanism="steps",
        settings={"order": ("a", "b"), "stop": 1},
        schemas=THREE_COLUMNS,
        label="three columns",
        loudness=LOUD,
    )
    ways: list[dict[str, Any]] = [{"elect": "layer"}, {"utility": "bic"}]
    for more in ways:
        settings = {"layers": 1, **more}
        yield PathClass(mechanism="steps", settings=settings, least=ELECTED)
    yield PathClass(mechanism="steps", settings={"elect": "groups"}, least=ELECTED)


def _pairs() -> Iterator[PathClass]:
    # the certificate of replace-one is exact on some schemas: on FOUR for records that
    # move in three columns
    loose = {"zcdp": {"replace-one": 0.9}}
    yield from _by_kind(PAIRS, FOUR, "four columns of two levels", share=5.0)
    for schemas, label in (
        (CELLS, "levels and bins"),
        (ZEROS, "zeros"),
        (RULES, "rules"),
        (PUBLIC, "public"),
        (TOTALS, "totals"),
        (GROUPS, "groups of codes"),
    ):
        yield from _by_kind(PAIRS, schemas, label, loose)
    yield from _by_kind(PAIRS, HOMES, "households", loose, caps=(1,), share=5.0)
    yield from _by_kind(PAIRS, NUMBERS, "numbers", loose, loudness=LOUD, share=0.5)
    yield from _by_kind(
        PAIRS | {"second_share": "1/2"}, FOUR, "four columns", share=5.0
    )
    # a choice moves two scores apart by all that it may only rarely
    rare = {"replace-one": 0.7, "add-remove": 0.7}
    chosen = {"pure": rare, "zcdp": rare}
    yield from _by_kind(PAIRS | {"chosen": 2}, FOUR, "four columns", chosen)
    yield from _by_kind(PAIRS | {"also": ("a", "b", "c")}, FOUR, "four columns", loose)
    weighted = {"pure": {"replace-one": 0.7}, "zcdp": {"replace-one": 0.7}}
    weighted["pure"]["add-remove"] = weighted["zcdp"]["add-remove"] = 0.9
    yield from _by_kind(
        PAIRS | {"weighted": ("a",)}, WEIGHTS, "weights", weighted, share=0.5
    )
    products = {
        "pure": {"replace-one": 0.5, "add-remove": 0.9},
        "zcdp": {"replace-one": 0.5, "add-remove": 0.9},
    }
    yield from _by_kind(
        PAIRS | {"products": ("a", "b")}, THREE_COLUMNS, "three columns", products
    )


def _networks() -> Iterator[PathClass]:
    yield PathClass(mechanism="privbayes")
    public = {"replace-one": 0.5}
    yield PathClass(mechanism="privbayes", schemas=PUBLIC, label="public", least=public)
    # half of the price is for choices, whose scores move by less on small tables
    yield PathClass(
        mechanism="privbayes",
        settings={"degree": 1, "usefulness": 0},
        schemas=FOUR,
        label="four columns",
        least={"replace-one": 0.5},
    )


def _quantiles() -> Iterator[PathClass]:
    # few records move gradients by less than all that they may
    for scheme in SCHEMES:
        settings: dict[str, Any] = {
            "scheme": scheme,
            "quantiles": ("1/4", "1/2", "3/4"),
            "main": ("1/2",),
            "n_candidates": 16,
        }
        yield PathClass(
            mechanism="kng",
            settings=settings,
            schemas=WAGES,
            label="wages",
            least={"replace-one": 0.2, "add-remove": 0.2},
        )
    # a number that is missing or not moves less than a number
    some = {"replace-one": 0.6, "add-remove": 0.9}
    yield PathClass(
        mechanism="kng-residual", settings={"bins": 4}, schemas=WAGES, label="wages"
    )
    yield PathClass(
        mechanism="kng-residual",
        settings={"bins": 4},
        schemas=ABSENT,
        label="missing wages",
        least=some,
    )
    yield PathClass(
        mechanism="kng-residual",
        settings={"bins": 4, "by": ("g",)},
        schemas=STRATA,
        label="strata",
    )
    yield PathClass(
        mechanism="kng-residual",
        settings={"bins": 4, "n_candidates": 8},
        schemas=FIRMS,
        label="a line",
        least={"replace-one": 0.5},
    )
    yield PathClass(
        mechanism="kng-residual",
        schemas=NUMBERS,
        label="numbers",
        least=some,
        loudness=LOUD,
    )


def _statistic_models() -> Iterator[PathClass]:
    counts = _statistics(statistics.of_counts)
    yield from _by_kind(
        {"model": counts}, statistics.MIXED, "counts", mechanism="modips"
    )
    per_set = {"model": counts, "n_sets": 2, "split": "per-set"}
    yield from _by_kind(per_set, statistics.MIXED, "counts", mechanism="modips")
    # the second of two counts follows from the first and the public number of records
    coin = {"model": _statistics(statistics.of_a_coin)}
    yield from _by_kind(coin, statistics.COIN, "a coin", mechanism="modips")
    # no record moves counts, sums and products all by the most
    some = {"replace-one": 0.4, "add-remove": 0.75}
    # one record moves a sum of squares by the most among very many only
    little = {"replace-one": 0.0, "add-remove": 0.0}
    for declared, label, least in (
        (statistics.of_moments, "moments", some),
        (_of_scatter, "squares about the mean", little),
    ):
        yield from _by_kind(
            {"model": _statistics(declared)},
            statistics.MIXED,
            label,
            {"pure": least, "zcdp": least},
            mechanism="modips",
            quick=(3,),
        )
    # the bound of a regression's coefficients isn't attained on small tables
    few = {"replace-one": 0.2, "add-remove": 0.2}
    yield from _by_kind(
        {"model": _statistics(statistics.of_choices)},
        statistics.CHOICE,
        "a regression",
        {"pure": few, "zcdp": few},
        mechanism="modips",
        quick=(3,),
    )


def _posteriors() -> Iterator[PathClass]:
    reference = {"model": posterior.coin, "centre": "reference"}
    yield from _by_kind(
        {**reference, "reference": {"theta": 0.0}},
        posterior.COIN,
        "a coin",
        mechanism="censored-posterior",
    )
    # rho of the first stage is less than half the square of its epsilon
    staged = {"zcdp": {"replace-one": 0.5, "add-remove": 0.5}}
    yield from _by_kind(
        {"model": posterior.coin, "centre": "staged"},
        posterior.COIN,
        "a coin, staged",
        staged,
        mechanism="censored-posterior",
    )
    yield from _by_kind(
        {"model": posterior.mean},
        posterior.NUMBER,
        "a mean",
        mechanism="scores",
        share=0.35,
        quick=(2,),
    )
    # a level moves scores by less than an end of a range
    groups = {"replace-one": 0.2, "add-remove": 0.2}
    yield from _by_kind(
        {"model": posterior.groups},
        posterior.GROUPS,
        "two groups",
        {"pure": groups, "zcdp": groups},
        mechanism="scores",
        share=0.35,
        quick=(2,),
    )
    # random pairs move the scores of all rounds, curvature and squares by some of what
    # they may
    some = {"replace-one": 0.3, "add-remove": 0.6}
    for model, schema, label in (
        (posterior.ill_given_group, posterior.GROUPS, "a confidential group"),
        (posterior.mean_given_group, posterior.GROUPED, "means of confidential groups"),
    ):
        yield from _by_kind(
            {"model": model},
            schema,
            label,
            {"pure": some, "zcdp": some},
            mechanism="scores",
            share=0.35,
            quick=(2,),
        )


def _groups() -> Iterator[PathClass]:
    yield from _by_kind(
        {}, posterior.GROUPS, "groups of levels", mechanism="group-sums"
    )
    # no replaced record moves both the sums of groups and that of squares by the most
    some = {"replace-one": 0.9, "add-remove": 0.9}
    yield from _by_kind(
        {},
        posterior.GROUPED,
        "groups of numbers",
        {"pure": some, "zcdp": some},
        mechanism="group-sums",
    )


def path_classes() -> list[PathClass]:
    """Return all classes, mechanism by mechanism."""
    return [
        *_histograms(),
        *_trees(),
        *_views(),
        *_pairs(),
        *_networks(),
        *_quantiles(),
        *_statistic_models(),
        *_posteriors(),
        *_groups(),
    ]


@dataclass
class ClassSummary:
    """The largest ratio of loss to price of a class under one relation, by cap."""

    path_class: PathClass
    neighbours: Neighbours
    largest: dict[int, float] = field(default_factory=dict)
    n_pairs: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, cap: int, lost: PathLoss) -> None:
        """Add the loss of a pair."""
        self.n_pairs += 1
        if lost.differences or lost.refusal:
            self.faults.append(lost.refusal or lost.dearest)
        if any(step.by == "plan" for step in lost.steps):
            return  # not read: it says nothing
        self.largest[cap] = max(self.largest.get(cap, 0.0), lost.ratio)

    @property
    def ratio(self) -> float:
        """The largest ratio at any cap."""
        return max(self.largest.values(), default=0.0)

    @property
    def least(self) -> float:
        """What the ratio is at least."""
        return self.path_class.least.get(self.neighbours, TIGHT)


def summarised(
    path_class: PathClass,
    neighbours: Neighbours,
    n_pairs: int,
    *,
    quick: bool = False,
    seed: int = 0,
) -> ClassSummary:
    """Return the largest ratio over ``n_pairs`` pairs at each cap, or at some caps."""
    summary = ClassSummary(path_class, neighbours)
    n_each = max(round(n_pairs * path_class.share), 1)
    for cap in path_class.caps:
        if quick and cap not in path_class.quick:
            continue
        for lost in path_class.losses(neighbours, cap, n_each, seed):
            summary.add(cap, lost)
    return summary
