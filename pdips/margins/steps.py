"""STEPS: statistical election to partition sequentially (Bowen, Liu and Su 2021; Bowen and Liu 2018)."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Any, ClassVar, Literal

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.domain import View, check_domain, check_noise, choose_views, deepest, domain_of, splittable
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

Below = Literal["cells", "margins"]
Elect = Literal["node", "layer", "groups"]
Budget = Literal["equal", "half-to-leaves"]

DEFAULT_ELECTION_SHARE = Fraction(1, 10)


@dataclass(frozen=True, kw_only=True)
class Steps(CountedTree, LaplaceOrGaussian):
    """STEPS-L: noisy counts on a tree that splits by the more telling columns first, or on margins of all columns.

    Without further options the tree has no layers: margins of a few columns each, which together hold every pair of
    columns, are counted with noise, and the table of maximum entropy that agrees with them is released. With ``order``,
    ``layers`` or ``elect`` there is a tree, as in the papers, down to all cells. ``epsilon``, ``n_sets`` and
    ``neighbours`` are those of :class:`pdips.Mechanism`.

    Parameters
    ----------
    order : tuple of str or of tuples of str, optional
        Columns from the top of the tree, chosen from public knowledge: costs nothing. A tuple (or ``"a+b"``) puts a
        group of columns into one layer.
    layers : int, optional
        Number L of layers that split, 1 to the number of columns. Left out: the length of ``order``, or as many as keep
        the layers above the cells within a million nodes whichever columns are elected.
    elect : {"node", "layer", "groups"}, optional
        How columns are elected where no order is given: by each node for itself (branches may differ), by each layer,
        or as two groups of columns, one on top (Bowen et al. 2021, section 2.2.3).
    utility : {"aic", "bic"}, optional
        Of the elections; BIC takes the public number of records, so it needs replace-one.
    election_share : int, float, str or Fraction, optional
        Part r of the budget for the elections (0.1, as in the simulations of Bowen et al. (2021)). Doesn't go with
        ``order``.
    below : {"margins", "cells"}, optional
        What is counted below the tree: margins of the whole table, or every cell. Left out: cells if an option asks for
        a tree, else margins, which are fitted on 2^24 cells at most.
    stop : int, float, str or Fraction, optional
        A node is cut no further if its noisy count is below this many standard deviations of the noise on its children.
        Free, since it reads counts that are paid for. What lies below is filled from the margins. Needs two layers.
    budget : {"equal", "half-to-leaves"} or tuple of numbers, optional
        How the noisy layers share what the elections leave: equally, half of it for what is below the tree, or the
        epsilon of each from the top, which must add up.
    split : {"once", "per-set"}
        One noisy tree for all sets, or a tree of its own, at epsilon / n_sets, for each.
    sets : {"fitted", "posterior"}
        For margins alone: whether all sets come from the table that agrees best with the noisy counts, or each from one
        of its own, fitted to them with fresh noise on top, so that sets show how unsure the noise leaves them.
    kind : {"pure", "zcdp"}
        Discrete Laplace noise, whose losses add up in epsilon; or, for margins alone, discrete Gaussian noise, read at
        ``delta``, with views and shares to suit it.
    delta : int, float, str or Fraction
        For ``kind="zcdp"``.

    Notes
    -----
    A record is in one node of each layer and in one cell of each margin. Replacing it changes the counts of a layer by
    at most 2 in l1, adding or removing it by 1; so each has noise of scale 2 / epsilon_h or 1 / epsilon_h. An election
    reads AIC scores, which move by at most 2. The total is the sum over elections, noised layers and margins. The root
    is exact under replace-one and not observed under add-remove. Consistency (least squares, or maximum entropy),
    rounding and drawing are post-processing. Proof: ``docs/proofs/steps.md``.

    References
    ----------
    Bowen et al. (2021), algorithm 1.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate({"columns": {name: {"levels": [0, 1]} for name in "abc"}})
    >>> table = pdips.Table(pd.DataFrame({"a": [0, 1, 1], "b": [0, 0, 1], "c": [1, 1, 0]}), schema)
    >>> release, _ = Steps(epsilon=1, order=("b", "a")).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "steps"
    weighs_records: ClassVar[bool] = True
    meets_totals: ClassVar[bool] = True
    observed_levels: ClassVar[bool] = False  # Whether elections count the levels that occur in place of the public ones

    order: tuple[str | tuple[str, ...], ...] | None = None
    layers: int | None = None
    elect: Elect | None = None
    utility: Utility | None = None
    election_share: Number | None = None
    below: Below | None = None
    stop: Number | None = None
    budget: Budget | tuple[Number, ...] | None = None
    split: Split = "once"
    sets: Literal["fitted", "posterior"] = "fitted"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.sets, ("fitted", "posterior"), "sets")
        for name, value in {"kind": "zcdp", "sets": "posterior"}.items():
            if getattr(self, name) == value and (self._has_tree() or self._below() == "cells"):
                raise InputError(
                    f"{name} = {value!r} is for margins alone: it goes with no option that asks for a tree or cells"
                )
        if self.sets == "posterior" and self.split == "per-set":
            raise InputError("sets = 'posterior' draws all sets from one noisy answer: it goes with split = 'once'")
        if self.layers is not None:
            check_whole(self.layers, "layers", 1, None)
        self._check_elections()
        for name, allowed in {"below": ("margins", "cells"), "elect": ("node", "layer", "groups")}.items():
            if getattr(self, name) is not None:
                choice(getattr(self, name), allowed, name)
        rules = ("equal", "half-to-leaves")
        if isinstance(self.budget, (tuple, list)):
            parts = tuple(self.budget)
            object.__setattr__(self, "budget", parts[0] if len(parts) == 1 and parts[0] in rules else parts)
        elif self.budget is not None:
            choice(self.budget, rules, "budget")
        if self.stop is not None and (exact(self.stop, "stop") < 0 or self.below == "cells"):
            raise InputError("stop must be at least 0, and it needs below = 'margins' to fill what it cuts off")
        if self.order is not None:
            self._check_order()

    def _check_elections(self) -> None:
        given = [name for name in ("elect", "utility", "election_share") if getattr(self, name) is not None]
        if given and self.order is not None:
            raise InputError(f"{given[-1]} and order exclude each other: a given order costs nothing")
        if self.order is None and not 0 < self._election_part() < 1:
            raise InputError(
                f"election_share must be above 0 and below 1, got {self.election_share}; to pay for none, give an order"
            )
        if self.utility is not None:
            choice(self.utility, ("aic", "bic"), "utility")
        if self.utility == "bic" and self.neighbours == "add-remove":
            raise InputError("utility = 'bic' weighs levels by the public number of records: replace-one only")
        if self.elect == "groups" and self.layers not in (None, 2):
            raise InputError("elect = 'groups' makes two groups of columns: leave layers out")
        if self.elect == "groups" and self.utility == "bic":
            raise InputError("elect = 'groups' goes with utility 'aic' only")

    def _check_order(self) -> None:
        given: Any = [self.order] if isinstance(self.order, str) else self.order
        order = tuple(tuple(layer) if isinstance(layer, (list, tuple)) else str(layer) for layer in given)
        object.__setattr__(self, "order", order)
        named = [name for layer in order for name in (layer if isinstance(layer, tuple) else (layer,))]
        if not named or not all(order):
            raise InputError("order must name at least one column, and no empty group")
        if len(set(named)) < len(named):
            raise InputError(f"order names {max(named, key=named.count)!r} twice")
        if self.layers is not None and self.layers > len(order):
            raise InputError(f"order names {len(order)} layers, too few for layers = {self.layers}")

    def _law(self, below: Below, n_elections: int) -> str:
        how = "given from public knowledge" if self.order else "elected by the exponential mechanism, paid for"
        if not self.order and self._has_tree() and not n_elections:
            how = "no other choice of them is possible"
        what = f"Counts on a tree of columns ({how})"
        if below == "margins":
            margins = "margins of a few columns each, chosen from public facts, that hold every pair of columns"
            what = f"{what} and on {margins}" if self._has_tree() else f"Counts on {margins}"
        noise, added = "discrete Laplace", ""
        if self.kind == "zcdp":
            noise, added = "discrete Gaussian", " Losses are added up as zero-concentrated ones and read at delta."
        return (
            f"{what}: every count that is not public has exact {noise} noise added, and each is paid for. "
            f"The counts were then made consistent, which costs nothing.{added}"
        )

    def _election_part(self) -> Fraction:
        if self.order is not None:
            return Fraction(0)
        return exact(DEFAULT_ELECTION_SHARE if self.election_share is None else self.election_share, "election_share")

    def _has_tree(self) -> bool:
        asked = (self.order, self.layers, self.elect, self.utility, self.election_share, self.stop)
        return any(option is not None for option in asked)

    def _below(self) -> Below:
        if self.below is not None:
            return self.below
        if self.stop is not None:
            return "margins"
        return "cells" if self._has_tree() else "margins"

    def _groups(self, schema: Schema) -> tuple[tuple[str, ...], ...]:
        """Return the columns of each layer of a given order."""
        groups = tuple(
            layer if isinstance(layer, tuple) else (layer,) if layer in schema.columns else tuple(layer.split("+"))
            for layer in self.order or ()
        )
        named = [name for group in groups for name in group]
        free = splittable(schema)
        for name in named:
            if name not in free:
                known = f"no column of the schema that could be split by; there are {', '.join(free)}"
                raise InputError(f"order: {name!r} is {known}")
        if len(set(named)) < len(named):
            raise InputError(f"order names {max(named, key=named.count)!r} twice")
        return groups[: self.layers]

    def _layers(self, schema: Schema, below: Below) -> tuple[tuple[bool, ...], int]:
        """Return which split layers are counted, and L. If all columns are split by, the last layer is the cells."""
        n_columns = len(splittable(schema))
        if self.order is not None:
            groups = self._groups(schema)
            inner = groups[:-1] if sum(map(len, groups)) == n_columns else groups
            return tuple(i == len(group) for group in inner for i in range(1, len(group) + 1)), len(groups)
        if self.elect == "groups":
            if not 2 <= n_columns <= MOST_GROUPED:
                said = f"2 to {MOST_GROUPED} columns that aren't public, not {n_columns}"
                raise InputError(f"elect = 'groups' divides {said}")
            return (True,), 2
        shallow = (2 if self._has_tree() else 0) if below == "margins" else deepest(schema)
        n_layers = self.layers or min(shallow, n_columns)
        if n_layers > n_columns:
            raise InputError(f"layers = {n_layers} is more than the {n_columns} columns that there are to split by")
        return (True,) * min(n_layers, n_columns - 1), n_layers

    def paid(self, n_layers: int, n_items: int) -> int:
        """Return by how many elections, or noisy layers, their budget is divided."""
        return n_items

    def election_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves the scores of an election apart, in steps of their grid."""
        width = group_width(self.neighbours) if self.elect == "groups" else node_width(self.neighbours)
        return Sensitivity.of_record(schema, l1=width * STEPS_PER_UNIT)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: elections and noisy counts of each layer, from the top, and then of the cells or margins."""
        check_domain(schema, self.neighbours)
        domain, below = domain_of(schema), self._below()
        if below == "margins" and domain.n_cells > MOST_DENSE:
            raise InputError(
                f"margins are fitted on at most {MOST_DENSE:,} cells; these columns have {domain.n_cells:,} together: "
                "take mechanism 'pairs', which lays out none, merge levels or bins, or leave columns out; a tree down "
                "to all cells (below=cells) says less"
            )
        if schema.known_totals(weighted=False) and (below == "cells" or self._has_tree()):
            raise InputError("public totals are met by margins alone, without an option that asks for a tree or cells")
        counted, n_layers = self._layers(schema, below)
        if self.stop is not None and sum(counted) < 2:
            raise InputError("stop needs two layers above the margins at least: it cuts the lower off by the upper")
        elections, noised = self._elections(schema, len(counted), n_layers), sum(counted) + 1
        left = self.total * (1 - self._election_part() if elections else 1)
        rule = ("half-to-leaves" if below == "margins" else "equal") if self.budget is None else self.budget
        prices = [part / self.rounds for part in divide(rule, left, noised, self.paid(n_layers, noised))]
        layers, views, groups = list[Step | None](), tuple[View, ...](), self._groups(schema)
        for each in counted:
            number = sum(step is not None for step in layers)
            by = f", split by {' and '.join(groups[number])}" if groups else ""
            what = f"each node of layer {number + 1}{by}"
            layers.append(self._count(schema, f"layer {number + 1}", what, prices[number]) if each else None)
        if below == "cells":
            layers.append(self._count(schema, "all cells", "each cell", prices[-1]))
        else:
            for columns, share in choose_views(domain, self.noise_law).items():
                name = f"the margin of {', '.join(domain.names[column] for column in columns)}"
                views += (View(domain, columns, self._count(schema, name, name, prices[-1] * share)),)
        asked = [step for pair in zip_longest(elections, layers) for step in pair if step is not None]
        steps = (*asked, *(view.step for view in views))
        check_noise(
            schema,
            self.neighbours,
            [
                step.scale if step.law == "laplace" else Fraction(step.noise.scale)
                for step in steps
                if step.law in NOISY
            ],
        )
        splitter: Splitter = GivenColumns(tuple(domain.names.index(name) for group in groups for name in group))
        if self.order is None and self.elect != "groups":
            splitter = ElectedColumns(
                domain=domain,
                steps=elections,
                by_layer=self.elect == "layer",
                utility=self.utility or "aic",
                observed_levels=self.observed_levels,
            )
        design = TreeDesign(
            domain=domain,
            layers=tuple(layers),
            splitter=splitter,
            views=views,
            stop=None if self.stop is None else exact(self.stop, "stop"),
            groups=GroupElection(domain=domain, step=elections[0]).elect if self.elect == "groups" else None,
            redraws=self.sets == "posterior",
        )
        law = self._law(below, len(elections))
        return self.planned(schema, steps, law, repeats=self.rounds, design=design, **self.reading)

    def _elections(self, schema: Schema, n_split: int, n_layers: int) -> tuple[Step, ...]:
        """Return the election of each layer that splits; none where an order is given."""
        n_elections = 0 if self.order is not None else n_split
        share = self._election_part() * self.per_round(self.rounds)
        names = [f"election of the columns of layer {number}" for number in range(1, n_elections + 1)]
        return tuple(
            Step(
                name="election of the columns on top" if self.elect == "groups" else name,
                sensitivity=self.election_sensitivity(schema),
                price=share / self.paid(n_layers, n_elections),
                law="exponential",
            )
            for name in names
        )

    def _count(self, schema: Schema, what: str, counts: str, price: Fraction) -> Step:
        name, sensitivity = f"noisy counts of {what}", self.sensitivity(schema)
        return Step(name=name, counts=counts, sensitivity=sensitivity, price=price, law=self.noise_law)

    def shown(self) -> dict[str, Any]:
        elects = self.order is None and (self._has_tree() or self._below() == "cells")
        found = super().shown() | {
            "below": self._below(),
            "election_share": float(self._election_part()) if elects else None,
            "stop": None if self.stop is None else float(exact(self.stop, "stop")),
        }
        if isinstance(self.budget, tuple):
            found["budget"] = [as_float(exact(part, "budget")) for part in self.budget]
        return found


def divide(budget: str | tuple[Number, ...], total: Fraction, n_noised: int, n_paid: int) -> tuple[Fraction, ...]:
    """Divide what the noisy counts may cost among the layers, the last being what is below the tree.

    By a rule, where ``n_paid`` equal parts are reckoned with; or as given, which must be a positive number for each
    layer, and add up to the total.
    """
    if isinstance(budget, str):
        if budget == "half-to-leaves" and n_noised > 1:
            return (*(total / 2 / (n_noised - 1),) * (n_noised - 1), total / 2)
        return (total / n_paid,) * n_noised
    parts = tuple(exact(part, "budget") for part in budget)
    if len(parts) != n_noised:
        raise InputError(
            f"budget has {len(parts)} numbers; it needs {n_noised}, one for each noisy layer from the top, "
            "the last for what is counted below the tree"
        )
    if min(parts) <= 0:
        raise InputError("budget must be above 0 for each layer")
    if sum(parts) != total:
        raise InputError(
            f"budget adds up to {spell(sum(parts, Fraction(0)))}; it must add up to {spell(total)}, which is epsilon "
            "less the elections' share"
        )
    return parts
