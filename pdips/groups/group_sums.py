"""group-sums: a mixed model with very many groups, from noisy numbers of each group's
records and of their outcomes.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.groups.design import Family, GroupDesign
from pdips.groups.formulas import source_of_published
from pdips.groups.hierarchy import Hierarchy, PlainHierarchy
from pdips.groups.noisy_groups import NoisyGroups
from pdips.groups.recognised import RecognisedModel, recognised_in
from pdips.groups.release_of_groups import GroupResult, drawn_of
from pdips.histogram.urns import check_public
from pdips.mechanism import Drawn, LaplaceOrGaussian
from pdips.posterior.columns import covariates_of
from pdips.posterior.model_file import BuildModel, Source, as_source
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator
from pdips.privacy.loss import check_whole
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity, n_changed
from pdips.release.offers import Offers

LOG = logging.getLogger("pdips")
# Independent draws of what groups have in common below which it is said that few count
FEW_DRAWS = 30

ENDS = "noisy records of each group, by the ends of the outcome's range"
SQUARES = "noisy sum of squares of the outcome"

# Share of the budget for the sum of squares, from which the deviation of a normal
# outcome is estimated: tuned on ``benchmarks.groups``
OF_SQUARES = Fraction(3, 100)
MOST_RECORDS = 100_000_000
# Of the noise on the number of records, up to which sets are as long as it says
MOST_SPREAD = 1_000_000


@dataclass(frozen=True, kw_only=True)
class GroupSums(LaplaceOrGaussian):
    """Records of a mixed model ``outcome ~ x + (1 | group)``, or of a normal outcome
    ``(1 + x | group)``, of however many groups, and the effects of each group with
    their intervals. Covariates ``x`` have levels, or whole numbers in a short range.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of
    :class:`pdips.mechanism.Mechanism`, ``delta`` is that of
    :class:`pdips.mechanism.LaplaceOrGaussian`.

    Parameters
    ----------
    outcome : str, optional
        The column that the model describes. Left out: that of the model, or the first
        confidential number that isn't whole, or else the first confidential column that
        has two levels or is a number. All other columns of the schema are groups: a
        group is a cell of them.
    family : {"normal", "bernoulli", "poisson"}, optional
        Of the outcome given its group, with the identity, logit and log link. Left out:
        that of the model, or Bernoulli for two levels and normal for a number.
    model : Source, optional
        A formula or a function ``make(df)`` as :func:`pdips.sample` takes it. Left out,
        priors are weak ones that follow from the outcome's bounds.
    n_records : int, optional
        Public number of synthetic records. By default as many as the table has; under
        add-remove as many as the noisy numbers say.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Each record is split between the ends of its outcome's range, and the parts are
    added up by group. So a record moves two numbers by one record in total, whatever
    the number of groups is, and half of the squared radius is that of the number of
    records (``docs/proofs/groups.md``). All groups get noise, empty ones too. Given
    what groups have in common they are independent, so that no Markov chain is needed:
    unknown sizes and effects are summed over, and common parameters are integrated over
    by importance sampling.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "site": Column(lower=0, upper=49, integer=True),
    ...     }
    ... )
    >>> site = np.arange(5_000) % 50
    >>> ill = np.where(np.arange(5_000) % 7 < 2, "yes", "no")
    >>> table = Table(pd.DataFrame({"ill": ill, "site": site}), schema)
    >>> release, record = GroupSums(epsilon=1, delta="1e-6").release(table)
    >>> len(release.tables["groups"])
    50
    """

    name: ClassVar[str] = "group-sums"
    offers: ClassVar[Offers] = Offers(
        public_columns=True,
        partitions=True,
        relations=("replace-one", "add-remove"),
        kinds=("pure", "zcdp"),
        sets_share="posterior",
        posterior_of="answers",
    )

    outcome: str | None = None
    family: Family | None = None
    model: str | Path | BuildModel | Source | None = None
    n_records: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_records is not None:
            check_whole(self.n_records, "n_records", 1, MOST_RECORDS)
        if self.model is not None:
            object.__setattr__(self, "model", as_source(self.model))

    def shown(self) -> dict[str, Any]:
        """Return settings that are published otherwise than given: the model with its
        text, which is public.
        """
        source = self.model
        text: dict[str, Any] = {"model": None, "model_source": None}
        if isinstance(source, Source):
            text = {"model": source.name, "model_source": source.text or None}
        return super().shown() | text

    @classmethod
    def of_published(cls, settings: Mapping[str, Any], schema: Schema) -> Self:
        """Return the mechanism of a release, whose model is a formula or left out."""
        names = {each.name for each in fields(cls)} - {"model"}
        given = {
            name: value
            for name, value in settings.items()
            if name in names and value is not None
        }
        if settings.get("model") is not None:
            given["model"] = source_of_published(settings, schema)
        return cls(**given)

    def seconds(self, schema: Schema, n_records: int) -> float:
        """Return about how long a release takes, by the number of groups."""
        return 15.0 + self.design(schema).n_groups / 20_000

    def design(self, schema: Schema) -> GroupDesign:
        """Return how records of a schema are counted."""
        outcome = self.outcome
        family = self.family
        groups = None
        within: tuple[str, ...] = ()
        if isinstance(self.model, Source):
            recognised = self._recognised(schema)
            outcome = outcome or recognised.outcome
            family = family or recognised.family
            groups = (recognised.group,)
            within = recognised.within
            if (outcome, family) != (recognised.outcome, recognised.family):
                raise InputError(
                    f"the model is of {recognised.outcome!r} with the family "
                    f"{recognised.family}: leave outcome and family out"
                )
        known = schema.without_person()
        return GroupDesign.of(known, outcome, family, groups, within)

    def hierarchy(self, design: GroupDesign) -> Hierarchy:
        """Return what the model says of groups."""
        if isinstance(self.model, Source):
            return self._recognised(design.schema)
        return PlainHierarchy.of(design)

    def _recognised(self, schema: Schema) -> RecognisedModel:
        source = self.model
        if not isinstance(source, Source):
            raise TypeError("there is no model to look at")
        return recognised_in(source, schema)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: the parts of records at both ends of the range by group, and
        of a normal outcome the sum of squares.
        """
        self.check_schema(schema)
        check_public(schema, self.neighbours, self.n_records)
        design = self.design(schema)
        steps = self.steps(schema, design)
        self._check_length(design, steps[0])
        return self.planned(
            schema, steps, self._sentences(design), design=design, **self.reading
        )

    def steps(self, schema: Schema, design: GroupDesign) -> list[Step]:
        """Return what is asked, each step with its share of the budget."""
        left = self.total
        squares = []
        if design.family == "normal":
            one = Sensitivity.of_sums(
                schema, self.neighbours, design.steps, signed=False, moves=False
            )
            step = Step(
                name=SQUARES,
                sensitivity=one,
                price=left * OF_SQUARES,
                law=self.noise_law,
                counts="the sum of squared outcomes, in records at an end of the range",
                unit=1 / design.steps,
            )
            squares.append(step)
            left -= step.price
        ends = Step(
            name=ENDS,
            sensitivity=self.of_ends(schema, design),
            price=left,
            law=self.noise_law,
            counts="each number of a group, in records",
            unit=1 / design.steps,
        )
        return [ends, *squares]

    def of_ends(self, schema: Schema, design: GroupDesign) -> Sensitivity:
        """Return how far a person moves the steps at the ends by group (lemma 1 of
        ``docs/proofs/groups.md``).
        """
        if design.membership_public:
            return Sensitivity.of_sums(
                schema, self.neighbours, design.steps, signed=False, moves=False
            )
        # the steps of a record are no negative numbers that add up to design.steps, so
        # that those of two records are at most at right angles
        both = n_changed(self.neighbours)
        return Sensitivity.of_record(
            schema, l1=both * design.steps, l2_squared=both * design.steps**2
        )

    def _check_length(self, design: GroupDesign, ends: Step) -> None:
        """Refuse sets as long as a noisy number says that is nearly noise."""
        if self.neighbours == "replace-one" or self.n_records is not None:
            return
        deviation = ends.noise.standard_deviation * math.sqrt(2 * design.n_groups)
        if deviation > MOST_SPREAD:
            raise InputError(
                "sets would be as long as the noisy numbers of records say, whose sum "
                f"has noise of standard deviation {deviation:,.0f}; give n_records, "
                "how many synthetic records, from public knowledge"
            )

    def check(self, plan: Plan, table: Table) -> None:
        """Say before anything is charged where most groups will be little more than
        their prior.
        """
        table.hold(plan.design.sums)
        if plan.n_public:
            self.forecast(plan, table.n_records)

    def forecast(self, plan: Plan, n_records: int) -> float:
        """Return the standard deviation of the noise on the mean of a group of average
        size, as a share of the outcome's range, and say so if that is the range itself.
        """
        design: GroupDesign = plan.design
        noise = plan.steps[0].noise.standard_deviation
        average = n_records / design.n_effects
        # groups that have an effect in common are added up
        share = noise * math.sqrt(design.n_within) / max(average, 1e-9)
        if share > 1:
            LOG.warning(
                "the noise on the mean of a group of average size is as wide as the "
                "range of %r (%.2g of it): most groups will be little more than their "
                "prior; take a larger epsilon or fewer groups",
                design.outcome,
                share,
            )
        return share

    def ask(self, plan: Plan, curator: Curator) -> NoisyGroups:
        """Ask for the steps at both ends by group, and for the sum of squares."""
        design: GroupDesign = plan.design
        ends, *others = plan.steps
        with curator.timed("adding up outcomes by group"):
            noisy = curator.count(ends, design.derived_ends)
            squares = None
            for step in others:
                [value] = curator.count(step, design.derived_squares)
                deviation = step.noise.standard_deviation
                squares = (float(value) / design.steps, deviation**2)
        facts = curator.facts
        public_sizes = None
        if design.membership_public:
            _, columns = covariates_of(plan.schema, facts)
            group = design.group_of(columns)
            public_sizes = np.bincount(group, minlength=design.n_groups)
        return NoisyGroups.of_ends(
            design,
            noisy,
            ends.standard_deviation**2,
            squares=squares,
            n_records=facts.n_records if facts.n_public else None,
            public_sizes=public_sizes,
        )

    def draw(
        self,
        plan: Plan,
        measured: NoisyGroups,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw from the posterior of common parameters and of all groups, and records
        of it.
        """
        written, columns = covariates_of(plan.schema, public)
        result = GroupResult.of(measured, self.hierarchy(plan.design), rng)
        effective = result.weighted.effective
        if effective < FEW_DRAWS:
            LOG.warning(
                "what groups have in common is known by %.0f independent draws: "
                "intervals may be too short; take more records, fewer groups, a larger "
                "epsilon or narrower priors",
                effective,
            )
        n_records = self.n_records or measured.n_records
        return drawn_of(result, n_sets, n_records, (written, columns), rng)

    def _sentences(self, design: GroupDesign) -> str:
        """Return what is done, for a disclosure board."""
        noise = "Laplace" if self.kind == "pure" else "Gaussian"
        grouped = " and ".join(repr(name) for name in design.groups)
        parts = [
            f"Each record is split between the two ends of the public range of "
            f"{design.outcome!r} by where its value lies, and the parts are added up "
            f"in each of the {design.n_groups:,} groups by {grouped}."
        ]
        if design.membership_public:
            parts.append("Who is in which group is public.")
        else:
            parts.append("All groups get noise, empty ones too.")
        if design.family == "normal":
            parts.append("The squared distances from the middle are added up once.")
        parts.append(
            f"Each number has exact discrete {noise} noise. Everything else is worked "
            f"out from these noisy numbers and public facts, so that it costs nothing. "
            f"The model and its priors are public, and were not chosen by looking at "
            f"the table."
        )
        if self.kind == "zcdp":
            parts.append(
                "Losses are added up as zero-concentrated ones and read at delta."
            )
        return " ".join(parts)
