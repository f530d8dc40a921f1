"""STEPS: statistical election to partition sequentially (Bowen, Liu and Su 2021; Bowen
and Liu 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, zip_longest
from typing import Any, ClassVar, Literal, Self

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.domain import (
    Domain,
    View,
    check_domain,
    check_noise,
    choose_views,
    columns_of,
    deepest,
    domain_of,
    splittable,
)
from pdips.margins.maximum_entropy import MOST_DENSE
from pdips.margins.synthesis import CountedTree
from pdips.margins.tree import (
    MOST_GROUPED,
    STEPS_PER_UNIT,
    ElectedColumns,
    GivenColumns,
    GroupElection,
    Splitter,
    TreeDesign,
    Utility,
    group_width,
    node_width,
)
from pdips.mechanism import LaplaceOrGaussian, Split
from pdips.privacy.loss import Number, as_float, check_whole, choice, exact, spell
from pdips.privacy.plan import NOISY, Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.offers import Offers, SetsShare

Below = Literal["cells", "margins"]
Elect = Literal["node", "layer", "groups"]
Budget = Literal["equal", "half-to-leaves"]

DEFAULT_ELECTION_SHARE = Fraction(1, 10)


@dataclass(frozen=True, kw_only=True)
class Steps(CountedTree, LaplaceOrGaussian):
    """STEPS-L: noisy counts on a tree that splits by the more telling columns first, or
    on margins of all columns.

    Without further options the tree has no layers: margins of a few columns each, which
    together hold every pair of columns, are counted with noise, and the table of
    maximum entropy that agrees with them is released. With ``order``, ``layers`` or
    ``elect`` there is a tree, as in the papers, down to all cells. ``epsilon``,
    ``n_sets`` and ``neighbours`` are those of :class:`pdips.Mechanism`.

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
    below : {"margins", "cells"}, optional
        What is counted below the tree: margins of the whole table, or every cell. Left
        out: cells if an option asks for a tree, else margins, which are fitted on 2^24
        cells at most.
    stop : int, float, str or Fraction, optional
        A node is cut no further if its noisy count is below this many standard
        deviations of the noise on its children. Free, since it reads counts that are
        paid for. What lies below is filled from the margins. Needs two layers.
    budget : {"equal", "half-to-leaves"} or tuple of numbers, optional
        How the noisy layers share what the elections leave: equally, half of it for
        what is below the tree, or the epsilon of each from the top, which must add up.
    split : {"once", "per-set"}
        One noisy tree for all sets, or a tree of its own, at epsilon / n_sets, for
        each.
    sets : {"fitted", "posterior"}, optional
        For margins alone: whether all sets come from the table that agrees best with
        the noisy counts, or each from one of its own, fitted to them with fresh noise
        on top, so that sets show how unsure the noise leaves them. Left out: one of its
        own for several sets of margins alone, or rules of combination would not hold.
    delta : int, float, str or Fraction, optional
        Left out, noise is discrete Laplace, and losses add up in epsilon. A number, for
        margins alone, makes it discrete Gaussian, with a zero-concentrated loss that is
        read at this delta, and with views and shares to suit it.

    Notes
    -----
    A record is in one node of each layer and in one cell of each margin. Replacing it
    changes the counts of a layer by at most 2 in l1, adding or removing it by 1; so
    each has noise of scale 2 / epsilon_h or 1 / epsilon_h. An election reads AIC
    scores, which move by at most 2. The total is the sum over elections, noised layers
    and margins. The root is exact under replace-one and not observed under add-remove.
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
        totals=True,
        counted_tables=True,
        relations=("replace-one", "add-remove"),
        kinds=("pure", "zcdp"),
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
    sets: Literal["fitted", "posterior"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sets is not None:
            choice(self.sets, ("fitted", "posterior"), "sets")
        self._check_margins_alone()
        if self.sets == "posterior" and self.split == "per-set":
            raise InputError(
                "sets = 'posterior' draws all sets from one noisy "
                "answer: it goes with split = 'once'"
            )
        if self.layers is not None:
            check_whole(self.layers, "layers", 1, None)
        self._check_elections()
        if self.below is not None:
            choice(self.below, ("margins", "cells"), "below")
        if self.elect is not None:
            choice(self.elect, ("node", "layer", "groups"), "elect")
        self._check_budget()
        if self.stop is not None:
            is_negative = exact(self.stop, "stop") < 0
            if is_negative or self.below == "cells":
                raise InputError(
                    "stop must be at least 0, and it needs below = "
                    "'margins' to fill what it cuts off"
                )
        if self.order is not None:
            self._check_order()

    def _check_margins_alone(self) -> None:
        if self._has_margins_alone():
            return
        for_margins = {
            "delta": self.delta is not None,
            "sets = 'posterior'": self.sets == "posterior",
        }
        for option, is_asked in for_margins.items():
            if is_asked:
                raise InputError(
                    f"{option} is for margins alone: it goes with no "
                    f"option that asks for a tree or cells"
                )

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
        elif self._has_tree() and not n_elections:
            how = "no other choice of them is possible"
        tree = f"a tree of columns ({how})"
        margins = (
            "margins of a few columns each, chosen from public facts, that "
            "hold every pair of columns"
        )
        what = f"Counts on {tree}"
        if below == "margins":
            what = f"Counts on {margins}"
            if self._has_tree():
                what = f"Counts on {tree} and on {margins}"
        noise = "discrete Laplace"
        added = ""
        if self.kind == "zcdp":
            noise = "discrete Gaussian"
            added = " Losses are added up as zero-concentrated ones and read at delta."
        return (
            f"{what}: every count that is not public has exact {noise} noise added, "
            f"and each is paid for. "
            f"The counts were then made consistent, which costs nothing.{added}"
        )

    def _election_part(self) -> Fraction:
        if self.order is not None:
            return Fraction(0)
        share = self.election_share
        if share is None:
            return DEFAULT_ELECTION_SHARE
        return exact(share, "election_share")

    def _has_tree(self) -> bool:
        asked = (
            self.order,
            self.layers,
            self.elect,
            self.utility,
            self.election_share,
            self.stop,
        )
        return any(option is not None for option in asked)

    def _below(self) -> Below:
        if self.below is not None:
            return self.below
        if self.stop is not None:
            return "margins"
        return "cells" if self._has_tree() else "margins"

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
                    f"by; there are {', '.join(free)}"
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
        shallow = 2 if self._has_tree() else 0
        if below == "cells":
            shallow = deepest(schema)
        n_layers = self.layers or min(shallow, n_columns)
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

    def for_more_sets(self) -> Self:
        """Return the mechanism whose sets show the noise, where there is one."""
        if self._has_margins_alone() and self.split == "once":
            return replace(self, sets="posterior")
        return self

    def sets_share(self) -> SetsShare:
        """Return what the sets share: posterior sets show the noise."""
        return "fresh noise" if self._posterior else super().sets_share()

    @property
    def _posterior(self) -> bool:
        """Whether each set comes from a fit of its own."""
        if self.sets is None:
            can_be = self._has_margins_alone() and self.split == "once"
            return can_be and self.n_sets > 1
        return self.sets == "posterior"

    def _has_margins_alone(self) -> bool:
        """Whether there is no tree, and margins are counted in place of all cells."""
        return not self._has_tree() and self._below() == "margins"

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: elections and noisy counts of each layer, from the top, and
        then of the cells or margins.
        """
        check_domain(schema, self.neighbours)
        domain = domain_of(schema)
        self._check_fits(schema, domain)
        below = self._below()
        counted, n_layers = self._layers(schema, below)
        if self.stop is not None and sum(counted) < 2:
            raise InputError(
                "stop needs two layers above the margins at least: it "
                "cuts the lower off by the upper"
            )
        elections = self._elections(schema, len(counted), n_layers)
        prices = self._prices(elections, n_layers, sum(counted) + 1)
        layers = self._layer_steps(schema, counted, prices)
        views = tuple[View, ...]()
        if below == "cells":
            layers.append(self._count(schema, "all cells", "each cell", prices[-1]))
        else:
            views = self._views(schema, domain, prices[-1])
        in_turn = chain.from_iterable(zip_longest(elections, layers))
        steps = [step for step in in_turn if step is not None]
        steps += [view.step for view in views]
        scales = [_noise_scale(step) for step in steps if step.law in NOISY]
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
            redraws=self._posterior,
        )
        law = self._law(below, len(elections))
        return self.planned(
            schema, steps, law, repeats=self.rounds, design=design, **self.reading
        )

    def _check_fits(self, schema: Schema, domain: Domain) -> None:
        has_margins = self._below() == "margins"
        if has_margins and domain.n_cells > MOST_DENSE:
            raise InputError(
                f"margins are fitted on at most {MOST_DENSE:,} cells; these columns "
                f"have {domain.n_cells:,} together: "
                "take mechanism 'margins', which lays out none, merge levels or bins, "
                "or leave columns out; a tree down "
                "to all cells (below=cells) says less"
            )
        margins_alone = has_margins and not self._has_tree()
        if schema.known_totals(weighted=False) and not margins_alone:
            raise InputError(
                "public totals are met by margins alone, without an "
                "option that asks for a tree or cells"
            )

    def _prices(
        self, elections: Sequence[Step], n_layers: int, n_noised: int
    ) -> list[Fraction]:
        """Return the price of each noisy layer from the top, the last being what is
        below the tree.
        """
        left = self.total
        if elections:
            left = self.total * (1 - self._election_part())
        rule = self.budget
        if rule is None:
            rule = "half-to-leaves" if self._below() == "margins" else "equal"
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

    def _views(
        self, schema: Schema, domain: Domain, price: Fraction
    ) -> tuple[View, ...]:
        """Return the margins that are counted below the tree."""
        views = list[View]()
        for columns, share in choose_views(domain, self.noise_law).items():
            names = ", ".join(domain.names[column] for column in columns)
            margin = f"the margin of {names}"
            step = self._count(schema, margin, margin, price * share)
            views.append(View(domain, columns, step))
        return tuple(views)

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
            law=self.noise_law,
        )

    def seconds(self, schema: Schema, n_records: int) -> float:
        """Return about how long a set takes, by cells (measured 2026-11-24)."""
        return 15 + 1.7e-5 * columns_of(schema).n_cells

    def shown(self) -> dict[str, Any]:
        elects = self.order is None and (self._has_tree() or self._below() == "cells")
        shown = super().shown()
        shown["below"] = self._below()
        if self._has_margins_alone():
            shown["sets"] = "posterior" if self._posterior else "fitted"
        shown["election_share"] = float(self._election_part()) if elects else None
        shown["stop"] = None if self.stop is None else float(exact(self.stop, "stop"))
        if isinstance(self.budget, tuple):
            shown["budget"] = [as_float(exact(part, "budget")) for part in self.budget]
        return shown


def _as_group(layer: str | tuple[str, ...]) -> tuple[str, ...]:
    return layer if isinstance(layer, tuple) else (layer,)


def _numbers(group: tuple[str, ...]) -> range:
    return range(1, len(group) + 1)


def _noise_scale(step: Step) -> Fraction:
    return step.scale if step.law == "laplace" else Fraction(step.noise.scale)


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
