"""STEPS: statistical election to partition sequentially (Bowen, Liu and Su 2021; Bowen
and Liu 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, zip_longest
from typing import Any, ClassVar, Literal

from pdips.data.schema import Schema
from pdips.errors import InputError, hint
from pdips.margins.domain import (
    Domain,
    View,
    check_domain,
    check_noise,
    columns_of,
    deepest,
    domain_of,
    splittable,
)
from pdips.margins.elections import (
    MOST_GROUPED,
    STEPS_PER_UNIT,
    ElectedColumns,
    GroupElection,
    Utility,
    group_width,
    node_width,
)
from pdips.margins.synthesis import CountedTree
from pdips.margins.tree import GivenColumns, Splitter, TreeDesign
from pdips.margins.views import OF_VIEWS, check_dense, counted_views, noise_scale
from pdips.mechanism import Split
from pdips.privacy.loss import Number, as_float, check_whole, choice, exact, spell
from pdips.privacy.plan import NOISY, Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.offers import Offers

Below = Literal["cells", "views"]
Elect = Literal["node", "layer", "groups"]
Budget = Literal["equal", "half-to-leaves"]

DEFAULT_ELECTION_SHARE = Fraction(1, 10)
LAYERS_ABOVE_VIEWS = 2


@dataclass(frozen=True, kw_only=True)
class Steps(CountedTree):
    """STEPS-L: noisy counts on a tree that splits by the more telling columns first,
    down to all cells.

    Counts of margins without a tree are those of ``margins``, which are more accurate
    for all pairs of columns. ``epsilon``, ``n_sets`` and ``neighbours`` are those of
    :class:`pdips.Mechanism`.

    Parameters
    ----------
    order : tuple of str or of tuples of str, optional
        Columns from the top of the tree, chosen from public knowledge: costs nothing. A
        tuple (or ``"a+b"``) puts a group of columns into one layer.
    layers : int, optional
        Number L of layers that split, 1 to the number of columns. Left out: the length
        of ``order``, or as many as keep the layers above the cells within a million
        nodes whichever columns are elected.
    elect : {"node", "layer", "groups"}, optional
        How columns are elected where no order is given: by each node for itself
        (branches may differ), by each layer, or as two groups of columns, one on top
        (Bowen et al. 2021, section 2.2.3).
    utility : {"aic", "bic"}, optional
        Of the elections; BIC takes the public number of records, so it needs
        replace-one.
    election_share : int, float, str or Fraction, optional
        Part r of the budget for the elections (0.1, as in the simulations of Bowen et
        al. (2021)). Doesn't go with ``order``.
    below : {"views", "cells"}, optional
        What is counted below the tree: margins of a few columns each of the whole
        table, as ``margins`` does, which are fitted on 2^24 cells at most; or every
        cell. Left out: cells, or views with ``stop``.
    stop : int, float, str or Fraction, optional
        A node is cut no further if its noisy count is below this many standard
        deviations of the noise on its children. Free, since it reads counts that are
        paid for. What lies below is filled from the views. Needs two layers.
    budget : {"equal", "half-to-leaves"} or tuple of numbers, optional
        How the noisy layers share what the elections leave: equally, half of it for
        what is below the tree, or the epsilon of each from the top, which must add up.
    split : {"once", "per-set"}
        One noisy tree for all sets, or a tree of its own, at epsilon / n_sets, for
        each.

    Notes
    -----
    A record is in one node of each layer and in one cell of each view. Replacing it
    changes the counts of a layer by at most 2 in l1, adding or removing it by 1; so
    each has noise of scale 2 / epsilon_h or 1 / epsilon_h. An election reads AIC
    scores, which move by at most 2. The total is the sum over elections, noised layers
    and views. The root is exact under replace-one and not observed under add-remove.
    Consistency (least squares, or maximum entropy), rounding and drawing are
    post-processing. Proof: ``docs/proofs/steps.md``.

    References
    ----------
    Bowen et al. (2021), algorithm 1.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {name: {"levels": [0, 1]} for name in "abc"}}
    ... )
    >>> table = pdips.Table(
    ...     pd.DataFrame({"a": [0, 1, 1], "b": [0, 0, 1], "c": [1, 1, 0]}), schema
    ... )
    >>> release, _ = Steps(epsilon=1, order=("b", "a")).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "steps"
    offers: ClassVar[Offers] = Offers(
        zeros=True,
        rules=True,
        public_columns=True,
        counted_tables=True,
        relations=("replace-one", "add-remove"),
        even_in_cells=True,
        planned_scales=True,
    )
    # Whether elections count the levels that occur in place of the public ones
    observed_levels: ClassVar[bool] = False

    order: tuple[str | tuple[str, ...], ...] | None = None
    layers: int | None = None
    elect: Elect | None = None
    utility: Utility | None = None
    election_share: Number | None = None
    below: Below | None = None
    stop: Number | None = None
    budget: Budget | tuple[Number, ...] | None = None
    split: Split = "once"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            check_whole(self.layers, "layers", 1, None)
        self._check_elections()
        if self.below is not None:
            choice(self.below, ("views", "cells"), "below")
        if self.elect is not None:
            choice(self.elect, ("node", "layer", "groups"), "elect")
        self._check_budget()
        if self.stop is not None:
            is_negative = exact(self.stop, "stop") < 0
            if is_negative or self.below == "cells":
                raise InputError(
                    "stop must be at least 0, and it needs below = "
                    "'views' to fill what it cuts off"
                )
        if self.order is not None:
            self._check_order()

    def _check_budget(self) -> None:
        rules = ("equal", "half-to-leaves")
        if isinstance(self.budget, (tuple, list)):
            parts = tuple(self.budget)
            is_rule = len(parts) == 1 and parts[0] in rules
            object.__setattr__(self, "budget", parts[0] if is_rule else parts)
        elif self.budget is not None:
            choice(self.budget, rules, "budget")

    def _check_elections(self) -> None:
        given = [
            name
            for name in ("elect", "utility", "election_share")
            if getattr(self, name) is not None
        ]
        if given and self.order is not None:
            raise InputError(
                f"{given[-1]} and order exclude each other: a given order costs nothing"
            )
        if self.order is None and not 0 < self._election_part() < 1:
            raise InputError(
                f"election_share must be above 0 and below 1, got "
                f"{self.election_share}; to pay for none, give an order"
            )
        if self.utility is not None:
            choice(self.utility, ("aic", "bic"), "utility")
        if self.utility == "bic" and self.neighbours == "add-remove":
            raise InputError(
                "utility = 'bic' weighs levels by the public number of "
                "records: replace-one only"
            )
        if self.elect == "groups" and self.layers not in (None, 2):
            raise InputError(
                "elect = 'groups' makes two groups of columns: leave layers out"
            )
        if self.elect == "groups" and self.utility == "bic":
            raise InputError("elect = 'groups' goes with utility 'aic' only")

    def _check_order(self) -> None:
        given: Any = [self.order] if isinstance(self.order, str) else self.order
        order = tuple(
            tuple(layer) if isinstance(layer, (list, tuple)) else str(layer)
            for layer in given
        )
        object.__setattr__(self, "order", order)
        named = [name for layer in order for name in _as_group(layer)]
        if not named or not all(order):
            raise InputError("order must name at least one column, and no empty group")
        if len(set(named)) < len(named):
            raise InputError(f"order names {max(named, key=named.count)!r} twice")
        if self.layers is not None and self.layers > len(order):
            raise InputError(
                f"order names {len(order)} layers, too few for layers = {self.layers}"
            )

    def _law(self, below: Below, n_elections: int) -> str:
        how = "elected by the exponential mechanism, paid for"
        if self.order:
            how = "given from public knowledge"
        elif not n_elections:
            how = "no other choice of them is possible"
        what = f"Counts on a tree of columns ({how})"
        if below == "views":
            what += f" and on {OF_VIEWS}"
        return (
            f"{what}: every count that is not public has exact discrete Laplace noise "
            f"added, and each is paid for. "
            f"The counts were then made consistent, which costs nothing."
        )

    def _election_part(self) -> Fraction:
        if self.order is not None:
            return Fraction(0)
        share = self.election_share
        if share is None:
            return DEFAULT_ELECTION_SHARE
        return exact(share, "election_share")

    def _below(self) -> Below:
        if self.below is not None:
            return self.below
        return "cells" if self.stop is None else "views"

    def _groups(self, schema: Schema) -> tuple[tuple[str, ...], ...]:
        """Return the columns of each layer of a given order."""
        groups = list[tuple[str, ...]]()
        for layer in self.order or ():
            group = _as_group(layer)
            if isinstance(layer, str) and layer not in schema.columns:
                group = tuple(layer.split("+"))
            groups.append(group)
        named = [name for group in groups for name in group]
        free = splittable(schema)
        for name in named:
            if name not in free:
                raise InputError(
                    f"order: {name!r} is no column of the schema that could be split "
                    f"by{hint(name, free)}; there are {', '.join(free)}"
                )
        if len(set(named)) < len(named):
            raise InputError(f"order names {max(named, key=named.count)!r} twice")
        return tuple(groups[: self.layers])

    def _layers(self, schema: Schema, below: Below) -> tuple[tuple[bool, ...], int]:
        """Return which split layers are counted, and L. If all columns are split by,
        the last layer is the cells.
        """
        n_columns = len(splittable(schema))
        if self.order is not None:
            groups = self._groups(schema)
            n_split = sum(len(group) for group in groups)
            inner = groups[:-1] if n_split == n_columns else groups
            # of a group of columns only the last layer is counted
            counted = [i == len(group) for group in inner for i in _numbers(group)]
            return tuple(counted), len(groups)
        if self.elect == "groups":
            if not 2 <= n_columns <= MOST_GROUPED:
                raise InputError(
                    f"elect = 'groups' divides 2 to {MOST_GROUPED} columns that "
                    f"aren't public, not {n_columns}"
                )
            return (True,), 2
        deep = deepest(schema) if below == "cells" else LAYERS_ABOVE_VIEWS
        n_layers = self.layers or min(deep, n_columns)
        if n_layers > n_columns:
            raise InputError(
                f"layers = {n_layers} is more than the {n_columns} "
                f"columns that there are to split by"
            )
        return (True,) * min(n_layers, n_columns - 1), n_layers

    def paid(self, n_layers: int, n_items: int) -> int:
        """Return by how many elections, or noisy layers, their budget is divided."""
        return n_items

    def election_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves the scores of an election apart, in steps of
        their grid.
        """
        width_of = group_width if self.elect == "groups" else node_width
        width = width_of(self.neighbours)
        return Sensitivity.of_record(schema, l1=width * STEPS_PER_UNIT)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: elections and noisy counts of each layer, from the top, and
        then of the cells or views.
        """
        check_domain(schema, self.neighbours)
        domain = domain_of(schema)
        below = self._below()
        if below == "views":
            check_dense(domain)
        counted, n_layers = self._layers(schema, below)
        if self.stop is not None and sum(counted) < 2:
            raise InputError(
                "stop needs two layers above the views at least: it "
                "cuts the lower off by the upper"
            )
        elections = self._elections(schema, len(counted), n_layers)
        prices = self._prices(elections, n_layers, sum(counted) + 1)
        layers = self._layer_steps(schema, counted, prices)
        views = tuple[View, ...]()
        if below == "cells":
            layers.append(self._count(schema, "all cells", "each cell", prices[-1]))
        else:
            sensitivity = self.sensitivity(schema)
            views = counted_views(domain, sensitivity, "laplace", prices[-1])
        in_turn = chain.from_iterable(zip_longest(elections, layers))
        steps = [step for step in in_turn if step is not None]
        steps += [view.step for view in views]
        scales = [noise_scale(step) for step in steps if step.law in NOISY]
        check_noise(schema, self.neighbours, scales)
        groups = None
        if self.elect == "groups":
            groups = GroupElection(domain=domain, step=elections[0]).elect
        splitter = self._splitter(schema, domain, elections)
        design = TreeDesign(
            domain=domain,
            layers=tuple(layers),
            splitter=splitter,
            views=views,
            stop=None if self.stop is None else exact(self.stop, "stop"),
            groups=groups,
        )
        law = self._law(below, len(elections))
        return self.planned(schema, steps, law, repeats=self.rounds, design=design)

    def _prices(
        self, elections: Sequence[Step], n_layers: int, n_noised: int
    ) -> list[Fraction]:
        """Return the price of each noisy layer from the top, the last being what is
        below the tree.
        """
        left = exact(self.epsilon, "epsilon")
        if elections:
            left *= 1 - self._election_part()
        rule = self.budget
        if rule is None:
            rule = "half-to-leaves" if self._below() == "views" else "equal"
        parts = divide(rule, left, n_noised, self.paid(n_layers, n_noised))
        return [part / self.rounds for part in parts]

    def _layer_steps(
        self, schema: Schema, counted: Sequence[bool], prices: Sequence[Fraction]
    ) -> list[Step | None]:
        """Return the noisy counts of each layer that splits, None for layers that
        aren't counted.
        """
        groups = self._groups(schema)
        steps = list[Step | None]()
        number = 0
        for is_counted in counted:
            if not is_counted:
                steps.append(None)
                continue
            by = f", split by {' and '.join(groups[number])}" if groups else ""
            price = prices[number]
            number += 1
            what = f"each node of layer {number}{by}"
            steps.append(self._count(schema, f"layer {number}", what, price))
        return steps

    def _splitter(
        self, schema: Schema, domain: Domain, elections: tuple[Step, ...]
    ) -> Splitter:
        """Return what says by which column a node splits."""
        if self.order is None and self.elect != "groups":
            return ElectedColumns(
                domain=domain,
                steps=elections,
                by_layer=self.elect == "layer",
                utility=self.utility or "aic",
                observed_levels=self.observed_levels,
            )
        named = [name for group in self._groups(schema) for name in group]
        return GivenColumns(tuple(domain.names.index(name) for name in named))

    def _elections(
        self, schema: Schema, n_split: int, n_layers: int
    ) -> tuple[Step, ...]:
        """Return the election of each layer that splits; none where an order is
        given.
        """
        n_elections = 0 if self.order is not None else n_split
        share = self._election_part() * self.per_round(self.rounds)
        steps = list[Step]()
        for number in range(1, n_elections + 1):
            name = f"election of the columns of layer {number}"
            if self.elect == "groups":
                name = "election of the columns on top"
            steps.append(
                Step(
                    name=name,
                    sensitivity=self.election_sensitivity(schema),
                    price=share / self.paid(n_layers, n_elections),
                    law="exponential",
                )
            )
        return tuple(steps)

    def _count(self, schema: Schema, what: str, counts: str, price: Fraction) -> Step:
        return Step(
            name=f"noisy counts of {what}",
            counts=counts,
            sensitivity=self.sensitivity(schema),
            price=price,
        )

    def seconds(self, schema: Schema, n_records: int) -> float:
        """Return about how long a set takes, by cells (measured 2026-11-24)."""
        return 15 + 1.7e-5 * columns_of(schema).n_cells

    def shown(self) -> dict[str, Any]:
        elects = self.order is None
        shown = super().shown()
        shown["below"] = self._below()
        shown["election_share"] = float(self._election_part()) if elects else None
        shown["stop"] = None if self.stop is None else float(exact(self.stop, "stop"))
        if isinstance(self.budget, tuple):
            shown["budget"] = [as_float(exact(part, "budget")) for part in self.budget]
        return shown


def _as_group(layer: str | tuple[str, ...]) -> tuple[str, ...]:
    return layer if isinstance(layer, tuple) else (layer,)


def _numbers(group: tuple[str, ...]) -> range:
    return range(1, len(group) + 1)


def divide(
    budget: str | tuple[Number, ...], total: Fraction, n_noised: int, n_paid: int
) -> tuple[Fraction, ...]:
    """Divide what the noisy counts may cost among the layers, the last being what is
    below the tree.

    By a rule, where ``n_paid`` equal parts are reckoned with; or as given, which must
    be a positive number for each layer, and add up to the total.
    """
    if isinstance(budget, str):
        if budget == "half-to-leaves" and n_noised > 1:
            upper = total / 2 / (n_noised - 1)
            return (*[upper] * (n_noised - 1), total / 2)
        return (total / n_paid,) * n_noised
    parts = tuple(exact(part, "budget") for part in budget)
    if len(parts) != n_noised:
        raise InputError(
            f"budget has {len(parts)} numbers; it needs {n_noised}, one for each "
            f"noisy layer from the top, "
            "the last for what is counted below the tree"
        )
    if min(parts) <= 0:
        raise InputError("budget must be above 0 for each layer")
    if sum(parts) != total:
        raise InputError(
            f"budget adds up to {spell(sum(parts, Fraction(0)))}; it must add up to "
            f"{spell(total)}, which is epsilon "
            "less the elections' share"
        )
    return parts
