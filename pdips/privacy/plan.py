"""What will be asked of a table, priced before it is read: steps, and the plan that they make up."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import Kind, Neighbours, PrivacyLoss, Sampling, Spend, positive, spell, zcdp
from pdips.privacy.noise import check_scale, discrete_laplace_variance
from pdips.privacy.sensitivity import Sensitivity

AnswerLaw = Literal["laplace", "gaussian", "exponential", "bounded-range", "distribution"]

NOISY: tuple[AnswerLaw, ...] = ("laplace", "gaussian")
RANGES: tuple[AnswerLaw, ...] = ("exponential", "bounded-range")

SEEDED = (
    "MADE FROM A SEED, for tests and studies, not for publication: the assumption on random bits below fails, and "
    "against anybody who knows or can guess the seed there is no guarantee."
)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise that was added to some statistics: its scale and standard deviation, in their unit. All public."""

    statistics: str
    scale: float
    standard_deviation: float


@dataclass(frozen=True, eq=False)
class LinearImage:
    """What is shown of noisy numbers: whole-number sums of them, and nothing else.

    The noise of each number has the step's variance or scale times ``whole`` over its weight, in ``weights``, shape
    (numbers,). ``show`` is linear: it takes noisy numbers, shape (runs, numbers), and returns sums, shape (runs, sums).
    """

    weights: IntArray
    whole: int
    show: Callable[[IntArray], IntArray]

    def scale(self, step: "Step", weight: int) -> Fraction:
        """Return the scale, or for Gaussian noise the variance, of the noise on a number of a weight."""
        return step.parameter * self.whole / weight

    def variance(self, step: "Step", weight: int) -> float:
        """Return the variance of the noise on a number of a weight."""
        scale = self.scale(step, weight)
        return float(scale) if step.law == "gaussian" else discrete_laplace_variance(scale)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One private answer. Its noise follows from its price; nothing else works out a scale.

    Parameters
    ----------
    name : str
        What the ledger and the card call it.
    sensitivity : Sensitivity
        How far one person can move it, in its own whole steps.
    price : Fraction
        Of all its repetitions together: epsilon, or rho for Gaussian noise.
    law : {"laplace", "gaussian", "exponential", "bounded-range", "distribution"}
        Discrete Laplace or Gaussian noise on each number of a vector; an exponential mechanism over candidates; a draw
        from a distribution whose log ratio between neighbours stays in some interval as long as the price; or from one
        whose log ratio is at most the price, either way. The last costs four times the rho of a bounded range.
    times : int
        How often it is asked: sequential repetitions, which share the price evenly.
    counts : str
        What the noise is on, for readers of the noisy numbers ("each cell"); empty for choices.
    delta : Fraction
        Probability with which the step may exceed its price.
    parallel : bool
        Asked of strata that no record can be in two of, and the sensitivity is that of all strata together: one person
        pays once.
    item : str
        Under which the ledger adds it up with others; its own name if left out.
    branch : str
        Which of several parts of the records it reads, where no record is in two. Within an item branches compose in
        parallel: the dearest counts, beside the steps without a branch.
    strata : int
        It is asked once for each of so many disjoint strata, together with the steps of its item and branch, and the
        sensitivity is that of all strata together: one person pays once.
    image : LinearImage, optional
        What is shown of the noisy numbers, where that isn't all of them; their noise may differ by weights.
    unit : float
        What a whole step of the answer is worth in the unit in which noise is shown.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from pdips import Schema
    >>> schema = Schema.model_validate({"columns": {"ill": {"levels": [False, True]}}})
    >>> cells = Sensitivity.of_counts(schema, "replace-one")
    >>> Step(name="noisy counts of all cells", sensitivity=cells, price=Fraction(1, 2)).scale
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
    unit: float = 1.0
    image: LinearImage | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "price", positive(self.price, f"the price of {self.name}"))
        if self.times < 1:
            raise InputError(f"{self.name} must be asked at least once, got times = {self.times}")
        if self.law in NOISY:
            check_scale(self.parameter, self.law)  # type: ignore[arg-type]
            if self.image is not None and len(self.image.weights):
                check_scale(self.image.scale(self, int(self.image.weights.min())), self.law)  # type: ignore[arg-type]

    @property
    def scale(self) -> Fraction:
        """Scale of the noise; for a choice, the steps of a score that are worth one nat. l1 / (price / times)."""
        return self.sensitivity.l1 * self.times / self.price

    @property
    def variance(self) -> Fraction:
        """The parameter sigma^2 of Gaussian noise: l2^2 / (2 rho), with rho the price of one repetition."""
        return self.sensitivity.l2_squared * self.times / (2 * self.price)

    @property
    def parameter(self) -> Fraction:
        """That of the noise's law: the variance of Gaussian noise, the scale of any other."""
        return self.variance if self.law == "gaussian" else self.scale

    @property
    def rho(self) -> Fraction:
        """What the step adds to a zero-concentrated loss: epsilon^2 / 2, or an eighth where the price is a range.

        Bun and Steinke (2016), proposition 1.4; Cesar and Rogers (2021) for exponential mechanisms and bounded ranges.
        """
        if self.law == "gaussian":
            return self.price
        return self.price**2 / (self.times * (8 if self.law in RANGES else 2))

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each number."""
        if self.law == "gaussian":
            return math.sqrt(self.variance)
        return math.sqrt(discrete_laplace_variance(self.scale))

    def enlarged(self, units: int | Fraction) -> "Step":
        """Return the step with a sensitivity so many times as large, at the same price."""
        if units == 1:
            return self
        sensitivity = Sensitivity.of_person(
            l1=units * self.sensitivity.l1, l2_squared=Fraction(units) ** 2 * self.sensitivity.l2_squared
        )
        return replace(self, sensitivity=sensitivity)

    @property
    def noise(self) -> Noise:
        """The noise on each number, in words and figures that may be published."""
        scale = math.sqrt(self.variance) if self.law == "gaussian" else float(self.scale)
        return Noise(
            statistics=self.counts, scale=scale * self.unit, standard_deviation=self.standard_deviation * self.unit
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that will be asked of a table of one schema; public, and made and checked before the table is read.

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
        How often all of the steps are asked, one round after the other: independent rounds, each with its price.
    n_sets : int
        Number of synthetic sets of a release.
    law : str
        For the disclosure board: what is done and which noise it has; one or more sentences.
    kind : {"pure", "approximate", "zcdp", "asymptotic", "none"}
        What sort of guarantee the steps add up to.
    delta : Fraction
        At which a zero-concentrated loss is read.
    sampling : {"exact", "mcmc"}
        Whether the output is drawn from the very law that the proof is about.
    claim : Fraction, optional
        The epsilon that a paper claims, for ``kind="none"`` and ``"asymptotic"``, in place of the sum over steps; the
        epsilon that was asked for, for ``"zcdp"``: what rho gives at delta is as much or less by rounding.
    design : object
        What else the mechanism worked out from settings and schema: the shape of a tree, a model.
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
    design: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.steps:
            raise InputError(
                f"{self.mechanism} would ask nothing of tables of this schema: there is nothing to release"
            )
        if len({step.name for step in self.steps}) < len(self.steps):
            raise InputError(f"two steps of {self.mechanism} have one name")

    @property
    def loss(self) -> PrivacyLoss:
        """The steps composed, with the paragraph for the disclosure board."""
        beyond = self.repeats * sum((step.delta for step in self.steps), Fraction(0))
        if self.kind == "zcdp":
            total = zcdp(self._sum(), self.delta, self.neighbours, "", beyond)
            parts: dict[str, Any] = {"epsilon": total.epsilon, "delta": total.delta, "rho": total.rho, "tau": beyond}
        else:
            claimed = self.claim if self.kind in ("none", "asymptotic") else None
            parts = {"epsilon": claimed or self._sum(), "delta": beyond}
        text = self.law
        if self.kind not in ("none", "asymptotic"):
            asked = max(parts["epsilon"], self.claim or Fraction(0))
            amounts = {"epsilon": asked, "delta": parts["delta"]}
            text = paragraph(self.mechanism, self.schema, self.neighbours, self.n_sets, self.law, **amounts)
        return PrivacyLoss(neighbours=self.neighbours, kind=self.kind, statement=text, sampling=self.sampling, **parts)

    def named(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    @property
    def spends(self) -> tuple[Spend, ...]:
        """The items of the price: every step of every round. Their epsilons add up to that of :attr:`loss`."""
        rate = self.loss.epsilon / self._sum()
        parallel = {step.item or step.name for step in self.steps if step.parallel}
        return tuple(
            Spend(
                step=f"{name}, set {number}" if self.repeats > 1 else name,
                epsilon=price * rate,
                composition="parallel" if name in parallel else "sequential",
            )
            for number in range(1, self.repeats + 1)
            for name, price in self._items().items()
        )

    @property
    def noise(self) -> tuple[Noise, ...]:
        """The noise on all noisy numbers of one round."""
        return tuple(step.noise for step in self.steps if step.law in NOISY)

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return self.neighbours == "replace-one"

    def _items(self) -> dict[str, Fraction]:
        """The price of each item of a round: its steps added up, of its branches the dearest."""
        found: dict[str, dict[str, Fraction]] = {}
        for step in self.steps:
            branches = found.setdefault(step.item or step.name, {"": Fraction(0)})
            cost = step.rho if self.kind == "zcdp" else step.price
            branches[step.branch] = branches.get(step.branch, Fraction(0)) + cost
        return {
            item: branches.pop("") + max(branches.values(), default=Fraction(0)) for item, branches in found.items()
        }

    def _sum(self) -> Fraction:
        return self.repeats * sum(self._items().values(), Fraction(0))


def paragraph(
    mechanism: str,
    schema: Schema | None,
    neighbours: Neighbours,
    n_sets: int,
    law: str,
    *,
    epsilon: Fraction,
    delta: Fraction,
) -> str:
    """Return the statement for a disclosure board; without a schema, of one record a person and no public columns."""
    records, public = (schema.records, schema.public_columns) if schema is not None else (None, ())
    most = records.max_per_person if records is not None else 1
    cap, upto = (f"{most} records", "up to ") if most > 1 else ("one record", "")
    whose, members = (schema.unit, schema.members) if schema is not None else ("person", None)
    if members is not None:
        upto, cap = "its own record and those of ", f"up to {members.most} members"
    factor = "the probability of any output by a factor of at most e^epsilon"
    if delta:
        factor = (
            "the probability of any set of outputs by a factor of at most e^epsilon and, beyond that, by at most "
            f"delta = {spell(delta)}"
        )
    whom = {
        "replace-one": f"replacing all that one {whose} ({upto}{cap}) contributed by any other values that the schema "
        f"allows changes {factor}; the number of {'households' if members else 'records'} is public",
        "add-remove": f"adding or removing all that one {whose} ({upto}{cap}) contributed changes {factor}, "
        "for all tables of one record or more, up to the mechanism's limit; the number of records is protected too",
    }[neighbours]
    plural = "s" if n_sets > 1 else ""
    parts = [
        f"{mechanism} with epsilon = {spell(epsilon)} in total over {n_sets} synthetic set{plural}: {whom}.",
        law,
        "Assumptions: the schema (levels, bounds, bins, impossible combinations) was fixed from public knowledge; "
        "whether and what to publish was not decided by looking at the confidential table or at unpaid diagnostics; "
        "the random bits of the operating system are unpredictable and were not kept.",
    ]
    if members is not None:
        order = "as in the file" if members.order is None else f"in the order of {members.order!r}"
        more = {"refuse": "is refused", "truncate": f"counts by its first {members.most} members, {order}"}
        parts.append(
            f"The unit is the household: all records with the same {members.key!r}. A larger one "
            f"{more[members.too_many]}."
        )
    elif records and records.person is None:
        parts.append(f"That no person has more than {cap} is declared, not checked.")
    elif records:
        parts.append(f"Records without a value in {records.person!r} are taken to be of a different person each.")
    clipped = [name for name, column in schema.columns.items() if column.out_of_range == "clip"] if schema else []
    if clipped:
        parts.append(f"Values beyond the schema's bounds are read as the nearest bound: {', '.join(clipped)}.")
    if public:
        parts.append(
            f"Public columns, their values copied (not their order) and not protected in any way: {', '.join(public)}. "
            "Neighbouring tables share them; only the other columns of a person change."
        )
    return " ".join(parts)
