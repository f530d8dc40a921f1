"""STEPS: statistical election to partition sequentially (papers 000 and 001)."""

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins import laws, synthesis
from pdips.margins.counts import Given, Plan
from pdips.margins.domain import check_domain, check_noise, domain_of
from pdips.margins.elections import (
    STEPS_PER_UNIT,
    Elected,
    GroupElection,
    Utility,
    check_grouped,
    group_width,
    node_width,
)
from pdips.margins.maximum_entropy import MOST_DENSE
from pdips.margins.tree_shape import Below, Shape, check_columns, deepest, divide, fits_margins, splittable, views_of
from pdips.margins.views import View
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, choice, exact
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw as Law
from pdips.release.release import Release, RunRecord

Elect = Literal["node", "layer", "groups"]
Budget = Literal["equal", "half-to-leaves"]

DEFAULT_ELECTION_SHARE = Fraction(1, 10)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """STEPS-L: noisy counts on a tree that splits by the more telling columns first, or on margins of all columns.

    Without further options the tree has no layers: margins of a few columns each, which together hold every pair of
    columns, are counted with noise, and the table of maximum entropy that agrees with them is released. With ``order``,
    ``layers`` or ``elect`` there is a tree, as in the papers, down to all cells.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it.
    order : tuple of str or of tuples of str, optional
        Columns from the top of the tree, chosen from public knowledge: costs nothing. A tuple (or ``"a+b"``) puts a
        group of columns into one layer.
    layers : int, optional
        Number L of layers that split, 1 to the number of columns. Left out: the length of ``order``, or as many as keep
        the layers above the cells within a million nodes whichever columns are elected.
    elect : {"node", "layer", "groups"}, optional
        How columns are elected where no order is given: by each node for itself (branches may differ), by each layer,
        or as two groups of columns, one on top (paper 000, section 2.2.3).
    utility : {"aic", "bic"}, optional
        Of the elections; BIC takes the public number of records, so it needs replace-one.
    election_share : int, float, str or Fraction, optional
        Part r of the budget for the elections (0.1, as in the simulations of paper 000). Doesn't go with ``order``.
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
    variant : {"sound", "published"}
        ``"published"`` is the accounting as printed: sensitivity 1 with a public number of records, L paid layers of
        L + 1, AIC with the number of observed levels. Kind "none", for studies only.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    A record is in one node of each layer and in one cell of each margin. Replacing it changes the counts of a layer by
    at most 2 in l1, adding or removing it by 1; so each has noise of scale 2 / epsilon_h or 1 / epsilon_h. An election
    reads AIC scores, which move by at most 2. The total is the sum over elections, noised layers and margins (SOUNDNESS
    theorems 4.2 and 4.3). The root is exact under replace-one and not observed under add-remove. Consistency (theorem
    4.7, or maximum entropy), rounding and drawing are post-processing. Proof: ``docs/proofs/steps.md``.

    References
    ----------
    Paper 000, algorithm 1.
    """

    name: ClassVar[str] = "steps"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound", "published")
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    most_sets: ClassVar[int] = MOST_SETS
    weighs_records: ClassVar[bool] = True

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    order: tuple[str | tuple[str, ...], ...] | None = None
    layers: int | None = None
    elect: Elect | None = None
    utility: Utility | None = None
    election_share: Number | None = None
    below: Below | None = None
    stop: Number | None = None
    budget: Budget | tuple[Number, ...] | None = None
    split: Split = "once"
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant, split=self.split)
        whole = isinstance(self.layers, int) and not isinstance(self.layers, bool)
        if self.layers is not None and not (whole and self.layers >= 1):
            raise InputError(f"layers must be a whole number of at least 1, got {self.layers}")
        self._check_elections()
        for name, allowed in {"below": ("margins", "cells"), "elect": ("node", "layer", "groups")}.items():
            if getattr(self, name) is not None:
                choice(getattr(self, name), allowed, name)
        self._check_budget()
        if self.stop is not None and (exact(self.stop, "stop") < 0 or self.below == "cells"):
            raise InputError("stop must be at least 0, and it needs below = 'margins' to fill what it cuts off")
        extra = (self.stop, self.budget) != (None, None) or self.below == "margins"
        if self.variant == "published" and extra:
            raise InputError(
                "variant 'published' is the papers' tree down to all cells, its layers paid equally: no margins below, "
                "no stop, no budget"
            )
        if self.order is not None:
            self._check_order()

    def _check_budget(self) -> None:
        rules = ("equal", "half-to-leaves")
        if isinstance(self.budget, (tuple, list)):
            parts = tuple(self.budget)
            object.__setattr__(self, "budget", parts[0] if len(parts) == 1 and parts[0] in rules else parts)
        elif self.budget is not None:
            choice(self.budget, rules, "budget")

    def _check_elections(self) -> None:
        given = [name for name in ("elect", "utility", "election_share") if getattr(self, name) is not None]
        if given and self.order is not None:
            raise InputError(f"{given[-1]} and order exclude each other: a given order costs nothing")
        if self.order is None and not 0 < self._share() < 1:
            raise InputError(
                f"election_share must be above 0 and below 1, got {self.election_share}; to pay for none, give an order"
            )
        if self.utility is not None:
            choice(self.utility, ("aic", "bic"), "utility")
        if self.utility == "bic" and (self.neighbours == "add-remove" or self.variant == "published"):
            raise InputError("utility = 'bic' weighs levels by the public number of records: sound, replace-one only")
        if self.elect == "groups" and self.layers not in (None, 2):
            raise InputError("elect = 'groups' makes two groups of columns: leave layers out")
        if self.elect == "groups" and (self.variant == "published" or self.utility == "bic"):
            raise InputError("elect = 'groups' goes with utility 'aic' and variant 'sound' only")

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

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        epsilon = exact(self.epsilon, "epsilon")
        if self.variant == "published":
            return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", statement=self._flaw(schema))
        text = statement(
            self,
            schema,
            f"{self._law(self._below(), schema)} The counts were then made consistent, which costs nothing.",
        )
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=text)

    def _law(self, below: Below, schema: Schema | None) -> str:
        how = "given from public knowledge" if self.order else "elected by the exponential mechanism, paid for"
        if not self.order and schema is not None and self._has_tree() and not self.shape(schema).elections:
            how = "no other choice of them is possible"
        tree = f"Counts on a tree of columns ({how})"
        if below == "margins":
            margins = "margins of a few columns each, chosen from public facts, that hold every pair of columns"
            what = f"{tree} and on {margins}" if self._has_tree() else f"Counts on {margins}"
        else:
            what = tree
        return f"{what}: every count that is not public has exact discrete Laplace noise added, and each is paid for."

    def _flaw(self, schema: Schema | None) -> str:
        text = (
            "NO GUARANTEE. As published: sensitivity 1 for every layer although replacing a record changes two counts, "
            "the budget divided over L layers although L + 1 are noised, and AIC with the observed number of levels."
        )
        if schema is None:
            return text
        shape = self.shape(schema)
        loss = self._n_trees() * (2 * sum(shape.elections) + 2 * sum(shape.noised))
        return f"{text} The true loss is up to {float(loss):g}."

    def _share(self) -> Fraction:
        if self.order is not None:
            return Fraction(0)
        return exact(DEFAULT_ELECTION_SHARE if self.election_share is None else self.election_share, "election_share")

    def _has_tree(self) -> bool:
        asked = (self.order, self.layers, self.elect, self.utility, self.election_share, self.stop)
        return any(option is not None for option in asked)

    def _n_trees(self) -> int:
        return self.n_sets if self.split == "per-set" else 1

    def _below(self) -> Below:
        if self.below is not None:
            return self.below
        if self.stop is not None:
            return "margins"
        return "cells" if self._has_tree() or self.variant == "published" else "margins"

    def _check_fits(self, schema: Schema) -> None:
        if not fits_margins(schema):
            raise InputError(
                f"margins are fitted on at most {MOST_DENSE:,} cells; these columns have "
                f"{domain_of(schema).n_cells:,} together: merge levels or bins, leave columns out, take privbayes, "
                "or ask for a tree down to all cells (below=cells), which says less"
            )

    def _groups(self, schema: Schema) -> tuple[tuple[str, ...], ...]:
        """Return the columns of each layer of a given order."""
        groups = tuple(
            layer if isinstance(layer, tuple) else (layer,) if layer in schema.columns else tuple(layer.split("+"))
            for layer in self.order or ()
        )
        named = [name for group in groups for name in group]
        check_columns(named, schema, "order")
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
            check_grouped(n_columns)
            return (True,), 2
        shallow = (2 if self._has_tree() else 0) if below == "margins" else deepest(schema)
        n_layers = self.layers or min(shallow, n_columns)
        if n_layers > n_columns:
            raise InputError(f"layers = {n_layers} is more than the {n_columns} columns that there are to split by")
        return (True,) * min(n_layers, n_columns - 1), n_layers

    def shape(self, schema: Schema) -> Shape:
        """Return the layers of one tree over tables of this schema, and their prices for one person."""
        below = self._below()
        if below == "margins":
            self._check_fits(schema)
        counted, n_layers = self._layers(schema, below)
        if self.stop is not None and sum(counted) < 2:
            raise InputError("stop needs two layers above the margins at least: it cuts the lower off by the upper")
        n_elections = 0 if self.order is not None else 1 if self.elect == "groups" else len(counted)
        epsilon, n_trees = exact(self.epsilon, "epsilon"), self._n_trees()
        share = self._share() * epsilon if n_elections else Fraction(0)
        n_noised = sum(counted) + 1
        n_paid = n_layers if self.variant == "published" else n_noised
        rule = ("half-to-leaves" if below == "margins" else "equal") if self.budget is None else self.budget
        each = share / n_trees / (n_layers if self.variant == "published" else max(n_elections, 1))
        return Shape(
            counted=counted,
            below=below,
            views=views_of(schema) if below == "margins" else {},
            elections=(each,) * n_elections,
            noised=tuple(part / n_trees for part in divide(rule, epsilon - share, n_noised, n_paid)),
        )

    def _sensitivity(self, schema: Schema) -> int:
        changed = 2 if self.neighbours == "replace-one" and self.variant == "sound" else 1
        return changed * schema.records.max_per_person

    def scales(self, schema: Schema) -> tuple[Fraction, ...]:
        """Return the scale of the noise on each noisy layer and view, in records, from the top."""
        layers = [scale for scale in self._layer_scales(schema) if scale is not None]
        return (*layers, *(view.scale for view in self.views(schema)))

    def _layer_scales(self, schema: Schema) -> tuple[Fraction | None, ...]:
        shape, sensitivity = self.shape(schema), self._sensitivity(schema)
        epsilons = iter(shape.noised)
        layers = [sensitivity / next(epsilons) if counted else None for counted in shape.counted]
        return tuple(layers) if shape.below == "margins" else (*layers, sensitivity / next(epsilons))

    def views(self, schema: Schema) -> tuple[View, ...]:
        """Return the margins that are counted below the tree, with their noise."""
        shape, names = self.shape(schema), domain_of(schema).names
        return tuple(
            View(columns, self._sensitivity(schema) / (shape.noised[-1] * share), _view_name(columns, names))
            for columns, share in shape.views.items()
        )

    def election_units(self, schema: Schema) -> tuple[Fraction, ...]:
        """Return, for each election, the nats that one grid step of its utility is worth."""
        width = group_width(self.neighbours) if self.elect == "groups" else node_width(self.neighbours)
        if self.variant == "published":
            width = Fraction(4)
        grid, cap = Fraction(1, STEPS_PER_UNIT), schema.records.max_per_person
        return tuple(epsilon * grid / (width * cap) for epsilon in self.shape(schema).elections)

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: elections, noised layers and margins of each tree."""
        check_domain(schema, self.neighbours)
        check_noise(schema, self.neighbours, self.scales(schema))
        shape = self.shape(schema)
        noised = shape.noised
        if self.variant == "published":  # the last layer isn't paid, unless it is one of the L
            noised = noised[: self._layers(schema, shape.below)[1]]
        items = []
        for number in range(1, self._n_trees() + 1):
            suffix = synthesis.of_set(number, self._n_trees())
            items += [
                Spend(step=f"{self._election_name(i)}{suffix}", epsilon=epsilon)
                for i, epsilon in enumerate(shape.elections, start=1)
            ]
            items += [
                Spend(step=f"noisy counts of {self._layer_name(shape, i)}{suffix}", epsilon=epsilon)
                for i, epsilon in enumerate(noised[: sum(shape.counted) + (not shape.views)], start=1)
            ]
            items += [
                Spend(step=f"noisy counts of {view.name}{suffix}", epsilon=noised[-1] * share)
                for view, share in zip(self.views(schema), shape.views.values(), strict=True)
            ]
        return tuple(items)

    def _election_name(self, number: int) -> str:
        return (
            "election of the columns on top" if self.elect == "groups" else f"election of the columns of layer {number}"
        )

    def _layer_name(self, shape: Shape, number: int) -> str:
        return f"layer {number}" if number <= sum(shape.counted) else "all cells"

    def _counted_names(self, schema: Schema, shape: Shape) -> tuple[str, ...]:
        """Return what to call the counts of each layer; nothing for layers that aren't counted."""
        names: list[str] = []
        for counted in shape.counted:
            number = sum(map(bool, names)) + 1
            by = f", split by {' and '.join(self._groups(schema)[number - 1])}" if self.order else ""
            names.append(f"each node of layer {number}{by}" if counted else "")
        return (*names, "each cell") if shape.below == "cells" else tuple(names)

    def plan(self, schema: Schema, n_records: int | None = None) -> Plan:
        """Return what is done to a table of this schema, and of this many records where that is public."""
        domain, shape, units = domain_of(schema), self.shape(schema), self.election_units(schema)
        chooser: Given | Elected = Given()
        if self.order is not None:
            chooser = Given(tuple(domain.names.index(name) for group in self._groups(schema) for name in group))
        elif self.elect != "groups":
            penalty = math.log(max(n_records or 1, 2)) if self.utility == "bic" else 2.0
            published = self.variant == "published"
            by_layer = self.elect == "layer"
            chooser = Elected(domain=domain, units=units, by_layer=by_layer, penalty=penalty, observed_levels=published)
        return Plan(
            scales=self._layer_scales(schema),
            chooser=chooser,
            n_public=self.neighbours == "replace-one",
            n_trees=self._n_trees(),
            names=self._counted_names(schema, shape),
            views=self.views(schema),
            stop=None if self.stop is None else exact(self.stop, "stop"),
            groups=GroupElection(domain=domain, unit=units[0]) if self.elect == "groups" else None,
        )

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the elected columns and noisy counts of independent releases, one a row, for audits."""
        return laws.observe(table, self.plan(table.schema, table.n_records), n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law, for audits of tiny tables."""
        return laws.law(table, self.plan(table.schema, table.n_records))

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        given = asdict(self)
        given["epsilon"] = as_float(exact(self.epsilon, "epsilon"))
        given["below"] = self._below()
        elects = self.order is None and (self._has_tree() or given["below"] == "cells")
        given["election_share"] = float(self._share()) if elects else None
        given["stop"] = None if self.stop is None else float(exact(self.stop, "stop"))
        if isinstance(self.budget, tuple):
            given["budget"] = [as_float(exact(part, "budget")) for part in self.budget]
        return given

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger, optional
            Charged before any noise is drawn.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published, and what stays inside.

        Raises
        ------
        InputError
            If ``order``, ``layers`` or ``budget`` don't fit the schema, it has unbinned columns or too many cells, or
            the ledger belongs to another table.
        RefusedError
            If the ledger's total would be overspent.
        """

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            plan = self.plan(table.schema, table.n_records)
            return synthesis.draw(table, plan, mechanism=self, bits=bits, clock=clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)


def _view_name(columns: tuple[int, ...], names: tuple[str, ...]) -> str:
    return f"the margin of {', '.join(names[column] for column in columns)}"
