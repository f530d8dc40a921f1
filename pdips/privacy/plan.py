"""What will be asked of a table, priced before it is read: steps, and the plan that
they make up.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError, PlanError
from pdips.privacy.loss import (
    CONCENTRATED_KINDS,
    Kind,
    Neighbours,
    PrivacyLoss,
    Sampling,
    Spend,
    also_sentence,
    as_asked,
    positive,
    spell,
    zcdp,
)
from pdips.privacy.noise import check_scale, discrete_laplace_variance
from pdips.privacy.rho import laplace_rho, of_pure, of_range
from pdips.privacy.sensitivity import Sensitivity

AnswerLaw = Literal[
    "laplace", "gaussian", "exponential", "bounded-range", "distribution"
]

NOISY: tuple[AnswerLaw, ...] = ("laplace", "gaussian")
RANGES: tuple[AnswerLaw, ...] = ("exponential", "bounded-range")

SEEDED = (
    "MADE FROM A SEED, for tests and studies, not for publication: the assumption on "
    "random bits below fails, and "
    "against anybody who knows or can guess the seed there is no guarantee."
)


ASSUMPTIONS = (
    "Assumptions: the schema (levels, bounds, bins, impossible combinations) was "
    "fixed from public knowledge; "
    "whether and what to publish was not decided by looking at the confidential "
    "table or at unpaid diagnostics; "
    "the random bits of the operating system are unpredictable and were not kept."
)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise that was added to some statistics: its scale and standard deviation, in
    their unit. All public.
    """

    statistics: str
    scale: float
    standard_deviation: float


@dataclass(frozen=True, eq=False)
class LinearImage:
    """What is shown of noisy numbers: whole-number sums of them, and nothing else.

    The noise of each number has the step's variance or scale times ``whole`` over its
    weight, in ``weights``, shape (numbers,). ``show`` is linear: it takes noisy
    numbers, shape (runs, numbers), and returns sums, shape (runs, sums).

    ``moved`` has each weight once, and how far one person moves the numbers of that
    weight, in whole numbers. Left empty, nothing but the price is known of them.
    """

    weights: IntArray
    whole: int
    show: Callable[[IntArray], IntArray]
    moved: tuple[tuple[int, Sensitivity], ...] = ()

    def scale(self, step: "Step", weight: int) -> Fraction:
        """Return the scale, or for Gaussian noise the variance, of the noise on a
        number of a weight.
        """
        return step.parameter * self.whole / weight

    def variance(self, step: "Step", weight: int) -> float:
        """Return the variance of the noise on a number of a weight."""
        scale = self.scale(step, weight)
        if step.law == "gaussian":
            return float(scale)
        return discrete_laplace_variance(scale)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One private answer. Its noise follows from its price; nothing else works out a
    scale.

    Parameters
    ----------
    name : str
        What the ledger and the card call it.
    sensitivity : Sensitivity
        How far one person can move it, in its own whole steps.
    price : Fraction
        Of all its repetitions together: epsilon, or rho for Gaussian noise.
    law : {"laplace", "gaussian", "exponential", "bounded-range", "distribution"}
        Discrete Laplace or Gaussian noise on each number of a vector; an exponential
        mechanism over candidates; a draw from a distribution whose log ratio between
        neighbours stays in some interval as long as the price; or from one whose log
        ratio is at most the price, either way. The last costs four times the rho of a
        bounded range.
    times : int
        How often it is asked: sequential repetitions, which share the price evenly.
    counts : str
        What the noise is on, for readers of the noisy numbers ("each cell"); empty for
        choices.
    delta : Fraction
        Probability with which the step may exceed its price.
    parallel : bool
        Asked of strata that no record can be in two of, and the sensitivity is that of
        all strata together: one person pays once.
    item : str
        Under which the ledger adds it up with others; its own name if left out.
    branch : str
        Which of several parts of the records it reads, where no record is in two.
        Within an item branches compose in parallel: the dearest counts, beside the
        steps without a branch.
    strata : int
        It is asked once for each of so many disjoint strata, together with the steps of
        its item and branch, and the sensitivity is that of all strata together: one
        person pays once.
    image : LinearImage, optional
        What is shown of the noisy numbers, where that isn't all of them; their noise
        may differ by weights.
    own_rho : Fraction, optional
        What all its repetitions add to a zero-concentrated loss, where a proof of its
        own says so and not the law: urns, private tables, steps that share a price
        (:func:`sharing`).
    units : tuple of Fraction
        Sensitivities, in its own, of which earlier answers say one, for the share of
        the price that goes with it; its noise is that of one of them. Left empty, they
        aren't known beforehand.
    unit : float
        What a whole step of the answer is worth in the unit in which noise is shown.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from pdips import Schema
    >>> schema = Schema.model_validate({"columns": {"ill": {"levels": [False, True]}}})
    >>> cells = Sensitivity.of_counts(schema, "replace-one")
    >>> Step(
    ...     name="noisy counts of all cells", sensitivity=cells, price=Fraction(1, 2)
    ... ).scale
    Fraction(4, 1)
    """

    name: str
    sensitivity: Sensitivity
    price: Fraction
    law: AnswerLaw = "laplace"
    times: int = 1
    counts: str = ""
    delta: Fraction = Fraction(0)
    parallel: bool = False
    item: str = ""
    branch: str = ""
    strata: int = 1
    units: tuple[Fraction, ...] = ()
    unit: float = 1.0
    image: LinearImage | None = field(default=None, repr=False)
    own_rho: Fraction | None = None

    def __post_init__(self) -> None:
        price = positive(self.price, f"the price of {self.name}")
        object.__setattr__(self, "price", price)
        if self.times < 1:
            raise InputError(
                f"{self.name} must be asked at least once, got times = {self.times}"
            )
        if self.law in NOISY:
            check_scale(self.parameter, self.law)  # type: ignore[arg-type]
            if self.image is not None and len(self.image.weights):
                loudest = self.image.scale(self, int(self.image.weights.min()))
                check_scale(loudest, self.law)  # type: ignore[arg-type]

    @property
    def scale(self) -> Fraction:
        """Scale of the noise; for a choice, the steps of a score that are worth one
        nat. l1 / (price / times).
        """
        return self.sensitivity.l1 * self.times / self.price

    @property
    def variance(self) -> Fraction:
        """The parameter sigma^2 of Gaussian noise: l2^2 / (2 rho), with rho the price
        of one repetition.
        """
        return self.sensitivity.l2_squared * self.times / (2 * self.price)

    @property
    def parameter(self) -> Fraction:
        """That of the noise's law: the variance of Gaussian noise, the scale of any
        other.
        """
        return self.variance if self.law == "gaussian" else self.scale

    @property
    def rho(self) -> Fraction:
        """What the step adds to a zero-concentrated loss, rounded up
        (``docs/proofs/rho.md``).

        Of Laplace noise by how far each number moves and the rate of its noise; of a
        choice or a bounded range an eighth of its square; of any other draw what its
        epsilon implies.
        """
        if self.law == "gaussian":
            return self.price
        if self.own_rho is not None:
            return self.own_rho
        price_once = self.price / self.times
        if self.law in RANGES:
            return self.times * of_range(price_once)
        if self.law == "distribution":
            return self.times * of_pure(price_once)
        return self.times * min(self._moved_rho(), of_pure(price_once))

    def _moved_rho(self) -> Fraction:
        """Return the rho of one repetition of Laplace noise."""
        most = self.sensitivity
        image = self.image
        if image is None:
            return laplace_rho(1 / self.scale, most.l1, most.l2_squared)
        if not image.moved:
            return of_pure(self.price / self.times)
        # each weight at the rate that its noise is drawn with, never the step's scale
        rates = [
            laplace_rho(1 / image.scale(self, weight), moved.l1, moved.l2_squared)
            for weight, moved in image.moved
        ]
        return sum(rates, Fraction(0))

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each number."""
        if self.law == "gaussian":
            return math.sqrt(self.variance)
        return math.sqrt(discrete_laplace_variance(self.scale))

    def facts(self) -> list[Any]:
        """Return all fields, for a digest: of an image its weights."""
        names = [one.name for one in fields(self) if one.name != "image"]
        facts = [getattr(self, name) for name in names]
        image = self.image
        if image is None:
            return facts
        return [*facts, image.whole, image.weights.tolist()]

    def enlarged(self, units: int | Fraction = 1, share: int | Fraction = 1) -> "Step":
        """Return the step with a sensitivity so many times as large, at a share of its
        price.

        Units above 1 can only lower the rho (``docs/proofs/rho.md``, theorem 2). A
        share above 1 takes of the price what another step leaves: both then state the
        rho of all, by :func:`sharing`, and a curator counts what they take together.
        """
        if self.units and Fraction(units) / share not in self.units:
            raise PlanError(
                f"{self.name!r} is asked at a sensitivity that its plan doesn't have"
            )
        if self.own_rho is None and (units < 1 or share > 1):
            raise PlanError(
                f"{self.name!r} is asked at less than its sensitivity, or at more than "
                f"its price; its plan must state the rho of all steps that share it"
            )
        if units == share == 1:
            return self
        sensitivity = Sensitivity.of_person(
            l1=units * self.sensitivity.l1,
            l2_squared=Fraction(units) ** 2 * self.sensitivity.l2_squared,
        )
        return replace(self, sensitivity=sensitivity, price=share * self.price)

    @property
    def shares_with(self) -> tuple[Any, ...]:
        """The same for all steps that share a price: they add rho in one proportion to
        their prices (:func:`sharing`).
        """
        rate = None if self.own_rho is None else self.own_rho / self.price
        is_rho = self.law == "gaussian"  # the unit of its price
        return (self.item, self.branch, self.strata, rate, is_rho)

    @property
    def noise(self) -> Noise:
        """The noise on each number, in words and figures that may be published."""
        scale = float(self.scale)
        if self.law == "gaussian":
            scale = math.sqrt(self.variance)
        return Noise(
            statistics=self.counts,
            scale=scale * self.unit,
            standard_deviation=self.standard_deviation * self.unit,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that will be asked of a table of one schema; public, and made and checked
    before the table is read.

    Parameters
    ----------
    mechanism : str
        Its name.
    schema : Schema
        Of the tables.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike.
    steps : tuple of Step
        What is asked, in this order. Names differ.
    repeats : int
        How often all of the steps are asked, one round after the other: independent
        rounds, each with its price.
    n_sets : int
        Number of synthetic sets of a release.
    law : str
        For the disclosure board: what is done and which noise it has; one or more
        sentences.
    kind : {"pure", "approximate", "zcdp", "asymptotic", "none"}
        What sort of guarantee the steps add up to.
    delta : Fraction
        At which a zero-concentrated loss is read.
    sampling : {"exact", "mcmc"}
        Whether the output is drawn from the very law that the proof is about.
    claim : Fraction, optional
        The epsilon that a paper claims, for ``kind="none"`` and ``"asymptotic"``, in
        place of the sum over steps; the epsilon that was asked for, for ``"zcdp"``:
        it is stated where what rho gives at delta is less by rounding alone.
    is_redrawn : bool
        Whether records are drawn with replacement from what is counted, so that errors
        of the sets aren't those of the noise alone.
    made_by : object
        The mechanism that made it; none other can release by it.
    design : object
        What else the mechanism worked out from settings and schema: the shape of a
        tree, a model.
    """

    mechanism: str
    schema: Schema
    neighbours: Neighbours
    steps: tuple[Step, ...]
    law: str
    repeats: int = 1
    n_sets: int = 1
    kind: Kind = "pure"
    delta: Fraction = Fraction(0)
    sampling: Sampling = "exact"
    claim: Fraction | None = None
    is_redrawn: bool = False
    made_by: Any = field(default=None, repr=False, compare=False)
    design: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.steps:
            raise InputError(
                f"{self.mechanism} would ask nothing of tables of this schema: there "
                f"is nothing to release"
            )
        if len({step.name for step in self.steps}) < len(self.steps):
            raise InputError(f"two steps of {self.mechanism} have one name")

    @property
    def loss(self) -> PrivacyLoss:
        """The steps composed, with the paragraph for the disclosure board."""
        beyond = self.repeats * sum((step.delta for step in self.steps), Fraction(0))
        if self.kind in ("none", "asymptotic"):
            return self._stated(epsilon=self.claim or self._sum(), delta=beyond)
        if self.kind == "approximate":
            return self._stated(epsilon=self._sum(), delta=beyond)
        if self.kind == "pure":
            return self._stated(epsilon=self._sum(), delta=beyond, rho=self.rho)
        total = zcdp(self._sum(), self.delta, self.neighbours, "", beyond)
        return self._stated(
            epsilon=as_asked(total.epsilon, self.claim),
            delta=total.delta,
            rho=total.rho,
            tau=beyond,
        )

    def _stated(
        self,
        *,
        epsilon: Fraction,
        delta: Fraction,
        rho: Fraction = Fraction(0),
        tau: Fraction = Fraction(0),
    ) -> PrivacyLoss:
        """Return a loss of these numbers with its statement."""
        text = self.law
        if self.kind not in ("none", "asymptotic"):
            asked = max(epsilon, self.claim or Fraction(0))
            also = rho if self.kind == "pure" else Fraction(0)
            text = paragraph(
                self.mechanism,
                self.schema,
                self.neighbours,
                self.n_sets,
                self.law,
                epsilon=asked,
                delta=delta,
                rho=also,
            )
        return PrivacyLoss(
            epsilon=epsilon,
            delta=delta,
            rho=rho,
            tau=tau,
            neighbours=self.neighbours,
            kind=self.kind,
            statement=text,
            sampling=self.sampling,
        )

    def digest(self, settings: Mapping[str, Any]) -> str:
        """Return a digest of all that is asked and of the settings that ask it; a
        release is resumed by the same plan alone.
        """
        parts = {
            "plan": [getattr(self, name) for name in _DIGESTED],
            "schema": self.schema.to_dict(),
            "steps": [step.facts() for step in self.steps],
            "settings": settings,
        }
        text = json.dumps(parts, sort_keys=True, default=_spelled)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def named(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    @cached_property
    def shared_prices(self) -> dict[tuple[Any, ...], Fraction]:
        """What steps of a round that share a price have together, by
        :attr:`Step.shares_with`.
        """
        prices: dict[tuple[Any, ...], Fraction] = {}
        for step in self.steps:
            if step.own_rho is not None:
                group = step.shares_with
                prices[group] = prices.get(group, Fraction(0)) + step.price
        return prices

    @property
    def spends(self) -> tuple[Spend, ...]:
        """The items of the price: every step of every round. Their epsilons add up to
        that of :attr:`loss`.
        """
        rate = self.loss.epsilon / self._sum()
        parallel = {step.item or step.name for step in self.steps if step.parallel}
        spends = []
        for number in range(1, self.repeats + 1):
            of_set = f", set {number}" if self.repeats > 1 else ""
            for name, price in self._items(self._unit).items():
                spend = Spend(
                    step=f"{name}{of_set}",
                    epsilon=price * rate,
                    composition="parallel" if name in parallel else "sequential",
                )
                spends.append(spend)
        return tuple(spends)

    @property
    def noise(self) -> tuple[Noise, ...]:
        """The noise on all noisy numbers of one round."""
        return tuple(step.noise for step in self.steps if step.law in NOISY)

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return self.neighbours == "replace-one"

    @property
    def rho(self) -> Fraction:
        """The steps composed as zero-concentrated losses: sums over steps and rounds,
        of branches the dearest; 0 for kinds that have no rho.

        Adaptive order changes nothing. A record that moves between branches moves each
        by half of what it may within one, and no rho of a step falls by less than half
        then (``docs/proofs/rho.md``, theorem 2): so the dearest branch bounds that too.
        """
        if self.kind not in CONCENTRATED_KINDS:
            return Fraction(0)
        total = self.repeats * sum(self._items("rho").values(), Fraction(0))
        return total if self.kind == "zcdp" else min(total, of_pure(self._sum()))

    def _items(self, unit: Literal["price", "rho"]) -> dict[str, Fraction]:
        """The price of each item of a round: its steps added up, of its branches the
        dearest.
        """
        nothing = Fraction(0)
        costs: dict[str, dict[str, Fraction]] = {}
        for step in self.steps:
            branches = costs.setdefault(step.item or step.name, {"": nothing})
            cost = step.rho if unit == "rho" else step.price
            branches[step.branch] = branches.get(step.branch, nothing) + cost
        items = {}
        for item, branches in costs.items():
            in_all = branches.pop("")
            items[item] = in_all + max(branches.values(), default=nothing)
        return items

    @property
    def _unit(self) -> Literal["price", "rho"]:
        """In which the steps add up to the loss."""
        return "rho" if self.kind == "zcdp" else "price"

    def _sum(self) -> Fraction:
        return self.repeats * sum(self._items(self._unit).values(), Fraction(0))


def sharing(steps: Sequence[Step], rho: Fraction) -> tuple[Step, ...]:
    """Return steps that add ``rho`` together, each in proportion to its price: they may
    hand on parts of their prices to each other, as public facts and earlier answers
    say.
    """
    whole = sum((step.price for step in steps), Fraction(0))
    return tuple(replace(step, own_rho=rho * step.price / whole) for step in steps)


def paragraph(
    mechanism: str,
    schema: Schema | None,
    neighbours: Neighbours,
    n_sets: int,
    law: str,
    *,
    epsilon: Fraction,
    delta: Fraction,
    rho: Fraction = Fraction(0),
) -> str:
    """Return the statement for a disclosure board; without a schema, of one record a
    person and no public columns.

    ``rho`` is that of a pure loss, whose epsilon comes first.
    """
    plural = "s" if n_sets > 1 else ""
    promise = _promise(schema, neighbours, _factor(delta))
    parts = [
        f"{mechanism} with epsilon = {spell(epsilon)} in total over {n_sets} "
        f"synthetic set{plural}: {promise}."
    ]
    if rho:
        parts.append(also_sentence(epsilon, rho))
    parts += [law, ASSUMPTIONS]
    if schema is not None:
        parts += _of_unit(schema)
        parts += _of_columns(schema)
    return " ".join(parts)


def _factor(delta: Fraction) -> str:
    """Say by how much a person changes the probability of what is published."""
    if not delta:
        return "the probability of any output by a factor of at most e^epsilon"
    return (
        "the probability of any set of outputs by a factor of at most e^epsilon "
        f"and, beyond that, by at most delta = {spell(delta)}"
    )


def _promise(schema: Schema | None, neighbours: Neighbours, factor: str) -> str:
    """Say between which tables the bound holds."""
    most = schema.records.max_per_person if schema is not None else 1
    members = schema.members if schema is not None else None
    whose = "person"
    cap = f"up to {most} records" if most > 1 else "one record"
    records = "records"
    if members is not None:
        whose = "household"
        cap = f"its own record and those of up to {members.most} members"
        records = "households"
    if neighbours == "replace-one":
        return (
            f"replacing all that one {whose} ({cap}) contributed by any other values "
            f"that the schema allows changes {factor}; the number of {records} is "
            "public"
        )
    return (
        f"adding or removing all that one {whose} ({cap}) contributed changes "
        f"{factor}, for all tables of one record or more, up to the mechanism's "
        "limit; the number of records is protected too"
    )


def _of_unit(schema: Schema) -> Iterator[str]:
    """Yield what is assumed of whose record is whose."""
    records = schema.records
    members = schema.members
    if members is not None:
        order = "as in the file"
        if members.order is not None:
            order = f"in the order of {members.order!r}"
        larger = "is refused"
        if members.too_many == "truncate":
            larger = f"counts by its first {members.most} members, {order}"
        yield (
            f"The unit is the household: all records with the same {members.key!r}. "
            f"A larger one {larger}."
        )
    elif records.person is None:
        most = records.max_per_person
        cap = f"{most} records" if most > 1 else "one record"
        yield f"That no person has more than {cap} is declared, not checked."
    else:
        yield (
            f"Records without a value in {records.person!r} are taken to be "
            f"of a different person each."
        )


def _of_columns(schema: Schema) -> Iterator[str]:
    """Yield what is special about some columns."""
    columns = schema.columns.items()
    clipped = [name for name, column in columns if column.out_of_range == "clip"]
    if clipped:
        yield (
            f"Values beyond the schema's bounds are read as the nearest "
            f"bound: {', '.join(clipped)}."
        )
    if schema.public_columns:
        yield (
            f"Public columns, their values copied (not their order) and not "
            f"protected in any way: {', '.join(schema.public_columns)}. "
            "Neighbouring tables share them; only the other columns of a person change."
        )


_DIGESTED = (
    "mechanism",
    "neighbours",
    "repeats",
    "n_sets",
    "kind",
    "delta",
    "sampling",
    "claim",
)


def _spelled(value: Any) -> str:
    """Return what a digest takes of a value that JSON has no word for; of a function
    its name, for its text is among the settings.
    """
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value)
