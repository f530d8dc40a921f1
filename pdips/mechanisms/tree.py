"""STEPS: statistical election to partition sequentially (papers 000 and 001)."""

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.ledger import Ledger
from pdips.mechanism import MOST_SETS, Clock, Drawn, Law, Progress, Split, Variant, check_settings, run, statement
from pdips.mechanisms import hierarchy
from pdips.mechanisms.consistency import IntArray
from pdips.mechanisms.hierarchy import Given, Plan
from pdips.mechanisms.layers import Domain, Layer, check_domain, check_noise, domain_of
from pdips.noise import RandomBits, choice_log_probabilities, exponential_mechanism
from pdips.privacy import Neighbours, Number, PrivacyLoss, Spend, as_float, exact
from pdips.release import Release, RunRecord
from pdips.schema import Schema
from pdips.table import Table

STEPS_PER_UNIT = 1024
"""AIC is rounded to a public grid of this many steps a unit (SOUNDNESS review E6: 2 units are whole steps)."""

DEFAULT_ELECTION_SHARE = Fraction(1, 10)

MOST_OUTCOMES = 100_000
"""An exact audit refuses to enumerate more choices than this at one layer."""

MOST_NODES = 1_000_000
"""Depth is chosen so that no layer above the cells has more nodes than this, unless the user says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """STEPS-L: noisy counts on a tree that splits by the more telling columns first.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it.
    layers : int, optional
        Number L of layers that split by one column, 1 to the number of columns. The columns that remain are fully
        cross-tabulated below. Left out: the length of ``order``, or as many as keep the layers above the cells within a
        million nodes whichever columns are elected. Deep trees release better margins (``docs/mechanisms/steps.md``).
    order : tuple of str, optional
        Columns from the top of the tree, chosen from public knowledge: costs nothing. Left out, each node elects its
        column by the exponential mechanism with utility -AIC.
    election_share : int, float, str or Fraction, optional
        Part r of the budget for the elections (0.1, as in the simulations of paper 000). Doesn't go with ``order``.
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
    A record is in one node of each layer. Replacing it changes the counts of a layer by at most 2 in l1, adding or
    removing it by 1; so each of the noised layers has noise of scale 2 / epsilon_h or 1 / epsilon_h. An election reads
    AIC scores, which move by at most 2. The total is the sum over the elected layers and the noised layers (SOUNDNESS
    theorems 4.2 and 4.3). The root is exact under replace-one and not observed under add-remove. Consistency by
    generalised least squares (theorem 4.7), rounding and drawing are post-processing. Proof: ``docs/proofs/steps.md``.

    References
    ----------
    Paper 000, algorithm 1.
    """

    name: ClassVar[str] = "steps"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound", "published")
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    layers: int | None = None
    order: tuple[str, ...] | None = None
    election_share: Number | None = None
    split: Split = "once"
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant, split=self.split)
        if self.election_share is not None and self.order is not None:
            raise InputError("election_share and order exclude each other: a given order costs nothing")
        if self.order is None and not 0 < self._share() < 1:
            raise InputError(
                f"election_share must be above 0 and below 1, got {self.election_share}; to pay for none, give an order"
            )
        if self.layers is not None and (isinstance(self.layers, bool) or self.layers < 1):
            raise InputError(f"layers must be a whole number of at least 1, got {self.layers}")
        if self.order is not None:
            object.__setattr__(self, "order", tuple(self.order))
            self._check_order(tuple(self.order))

    def _check_order(self, order: tuple[str, ...]) -> None:
        if not order:
            raise InputError("order must name at least one column")
        if len(set(order)) < len(order):
            raise InputError(f"order names {max(order, key=order.count)!r} twice")
        if self.layers is not None and self.layers > len(order):
            raise InputError(f"order names {len(order)} columns, too few for layers = {self.layers}")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        epsilon = exact(self.epsilon, "epsilon")
        if self.variant == "published":
            return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", statement=self._flaw(schema))
        how = "given from public knowledge" if self.order else "elected by the exponential mechanism, paid for"
        law = (
            f"Counts on a tree of columns ({how}): every count of every layer that is not public has exact discrete "
            "Laplace noise added, each layer paid for; the counts were then made consistent, which costs nothing."
        )
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=statement(self, schema, law)
        )

    def _flaw(self, schema: Schema | None) -> str:
        text = (
            "NO GUARANTEE. As published: sensitivity 1 for every layer although replacing a record changes two counts, "
            "the budget divided over L layers although L + 1 are noised, and AIC with the observed number of levels."
        )
        if schema is None:
            return text
        n_split = self._shape(schema)
        r = self._share() if n_split else Fraction(0)
        elections = 2 * r * Fraction(n_split, self._n_layers(schema))
        loss = exact(self.epsilon, "epsilon") * (
            elections + 2 * (1 - r) * Fraction(n_split + 1, self._n_layers(schema))
        )
        return f"{text} The true loss is up to {float(loss):g}."

    def _share(self) -> Fraction:
        if self.order is not None:
            return Fraction(0)
        return exact(DEFAULT_ELECTION_SHARE if self.election_share is None else self.election_share, "election_share")

    def _n_layers(self, schema: Schema) -> int:
        """Return L, checked against the columns of the schema."""
        columns = [name for name in schema.columns if name not in schema.public_columns]
        if self.order is not None:
            for name in self.order:
                if name not in columns:
                    raise InputError(f"order: {name!r} is no column of the schema that could be split by")
        n_layers = self.layers or (len(self.order) if self.order else _deepest(schema, columns))
        if n_layers > len(columns):
            raise InputError(f"layers = {n_layers} is more than the {len(columns)} columns that there are to split by")
        return n_layers

    def _shape(self, schema: Schema) -> int:
        """Return the number of layers that split by a column: one less than L = p, where the last is the cells."""
        n_columns = len(schema.columns) - len(schema.public_columns)
        return min(self._n_layers(schema), n_columns - 1)

    def _n_trees(self) -> int:
        return self.n_sets if self.split == "per-set" else 1

    def budget(self, schema: Schema) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        """Return the epsilon of each election and of each noised layer of one tree, for one person.

        In the published variant the last noised layer is missing, for it is not paid.
        """
        n_split, n_layers = self._shape(schema), self._n_layers(schema)
        n_elections = 0 if self.order is not None else n_split
        epsilon = exact(self.epsilon, "epsilon") / self._n_trees()
        r = self._share() if n_elections else Fraction(0)
        divisor = n_layers if self.variant == "published" else n_split + 1
        paid = min(divisor, n_split + 1)
        share = r * epsilon / max(n_layers if self.variant == "published" else n_elections, 1)
        return (share,) * n_elections, ((1 - r) * epsilon / divisor,) * paid

    def scales(self, schema: Schema) -> tuple[Fraction, ...]:
        """Return the scale of the noise on each layer below layer 0, in records; the last is that of the cells."""
        sensitivity = 2 if self.neighbours == "replace-one" and self.variant == "sound" else 1
        paid = self.budget(schema)[1]
        layers = (*paid, paid[-1])[: self._shape(schema) + 1]
        return tuple(sensitivity * schema.records.max_per_person / epsilon for epsilon in layers)

    def election_units(self, schema: Schema) -> tuple[Fraction, ...]:
        """Return, for each elected layer, the nats that one grid step of AIC is worth.

        One step g of the grid more than the sensitivity 2 allows for rounding at a boundary, on each side: a score that
        should rise by [0, 2] rises by [-g, 2 + g]. Hence (2 + 2 g) for one node, and twice that under replace-one.
        """
        grid = Fraction(1, STEPS_PER_UNIT)
        width = (2 + 2 * grid) * (2 if self.neighbours == "replace-one" else 1)
        if self.variant == "published":
            width = Fraction(4)
        cap = schema.records.max_per_person
        return tuple(epsilon * grid / (width * cap) for epsilon in self.budget(schema)[0])

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: elections and noised layers of each tree."""
        check_domain(schema, self.neighbours)
        check_noise(schema, self.neighbours, self.scales(schema))
        elections, noised = self.budget(schema)
        items = []
        for number in range(1, self._n_trees() + 1):
            suffix = hierarchy.of_set(number, self._n_trees())
            items += [
                Spend(step=f"election of the columns of layer {i}{suffix}", epsilon=epsilon)
                for i, epsilon in enumerate(elections, start=1)
            ]
            items += [
                Spend(step=f"noisy counts of {self._layer_name(schema, i)}{suffix}", epsilon=epsilon)
                for i, epsilon in enumerate(noised, start=1)
            ]
        return tuple(items)

    def _counted(self, schema: Schema, number: int) -> str:
        if number > self._shape(schema):
            return "each cell"
        return f"each node of layer {number}" + (f", split by {self.order[number - 1]}" if self.order else "")

    def _layer_name(self, schema: Schema, number: int) -> str:
        return f"layer {number}" if number <= self._shape(schema) else "all cells"

    def plan(self, schema: Schema) -> Plan:
        """Return what is done to a table of this schema."""
        domain = domain_of(schema)
        chooser: Given | Elected = Elected(domain, self.election_units(schema), self.variant == "published")
        if self.order is not None:
            chooser = Given(tuple(domain.names.index(name) for name in self.order))
        return Plan(
            scales=self.scales(schema),
            chooser=chooser,
            n_public=self.neighbours == "replace-one",
            n_trees=self._n_trees(),
            names=tuple(self._counted(schema, number) for number in range(1, self._shape(schema) + 2)),
        )

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the elected columns and noisy counts of independent releases, one a row, for audits."""
        return hierarchy.observe(table, self.plan(table.schema), n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law, for audits of tiny tables."""
        return hierarchy.law(table, self.plan(table.schema))

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        given = asdict(self)
        given["epsilon"] = as_float(exact(self.epsilon, "epsilon"))
        given["election_share"] = float(self._share())
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
            If ``order`` or ``layers`` don't fit the schema, it has unbinned columns or too many cells, or the ledger
            belongs to another table.
        RefusedError
            If the ledger's total would be overspent.
        """

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            return hierarchy.draw(table, self.plan(table.schema), mechanism=self, bits=bits, clock=clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)


@dataclass(frozen=True)
class Elected:
    """Each node elects its column by the exponential mechanism with utility -AIC.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    units : tuple of Fraction
        For each layer, the nats that one grid step of AIC is worth.
    observed_levels : bool
        Count the levels that occur, as paper 000 does, in place of the public ones.
    """

    domain: Domain
    units: tuple[Fraction, ...]
    observed_levels: bool

    def _scores(self, layer: Layer, node: IntArray, codes: IntArray) -> IntArray:
        return election_scores(self.domain, layer, node, codes, observed_levels=self.observed_levels)

    def draw(
        self, number: int, layer: Layer, node: IntArray, codes: IntArray, *, n_runs: int, bits: RandomBits
    ) -> IntArray:
        """Return the columns elected in independent runs, shape (runs, nodes)."""
        scores = np.tile(self._scores(layer, node, codes), (n_runs, 1))
        return exponential_mechanism(scores, self.units[number - 1], bits).reshape(n_runs, layer.n_nodes)

    def outcomes(
        self, number: int, layer: Layer, node: IntArray, codes: IntArray
    ) -> tuple[IntArray, NDArray[np.float64]]:
        """Return every way in which the nodes can elect, shape (outcomes, nodes), and its log probability."""
        scores = self._scores(layer, node, codes)
        log_each = choice_log_probabilities(scores, self.units[number - 1])
        candidates = [np.flatnonzero(np.isfinite(row)) for row in log_each]
        if math.prod(map(len, candidates)) > MOST_OUTCOMES:
            raise InputError("too many trees to enumerate; use fewer layers, columns or levels")
        chosen = np.array(list(product(*candidates)), dtype=np.int64)
        return chosen, log_each[np.arange(layer.n_nodes), chosen].sum(axis=1)


def _deepest(schema: Schema, columns: list[str]) -> int:
    """Return how many layers any choice of columns keeps within ``MOST_NODES`` nodes; at least 1."""
    sizes = sorted((schema.columns[name].n_levels for name in columns), reverse=True)
    top = math.prod(schema.columns[name].n_levels for name in schema.public_columns)
    nodes = [top * math.prod(sizes[:n_layers]) for n_layers in range(1, len(sizes) + 1)]
    return max(sum(number <= MOST_NODES for number in nodes), 1)


def election_scores(
    domain: Domain, layer: Layer, node: IntArray, codes: IntArray, *, observed_levels: bool = False
) -> IntArray:
    """Return -AIC of splitting each node by each column, in whole grid steps.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    layer : Layer
        The nodes.
    node : ndarray, shape (records,)
        Where each record is.
    codes : ndarray, shape (records, columns)
        Levels of each record.
    observed_levels : bool
        Count the levels that occur, as paper 000 does, in place of the public ones.

    Returns
    -------
    ndarray of int64, shape (nodes, columns)
        The smallest int64 for a column that has been split already.
    """
    unavailable = np.iinfo(np.int64).min
    scores = np.full((layer.n_nodes, len(domain.names)), unavailable, dtype=np.int64)
    for column, size in enumerate(domain.sizes):
        open_ = layer.path[:, column] < 0
        if open_.any():
            counts = np.bincount(node * size + codes[:, column], minlength=layer.n_nodes * size)
            aic = one_way_aic(counts.reshape(layer.n_nodes, size), observed_levels=observed_levels)
            steps = -np.floor(aic * STEPS_PER_UNIT + 0.5).astype(np.int64)
            scores[open_, column] = steps[open_]
    return scores


def one_way_aic(counts: IntArray, *, observed_levels: bool = False) -> NDArray[np.float64]:
    """Return the AIC of the saturated one-way multinomial model of each row of counts.

    With h(m) = log m! - m log m the log-likelihood is h(n) - sum_k h(n_k) (SOUNDNESS lemma 4.1). Since the counts of a
    row add up to n, h may be replaced by h(m) + m, which stays small: no large terms cancel, and the error is below
    1e-9 for any table that fits in memory.

    Parameters
    ----------
    counts : ndarray of int64, shape (rows, levels)
        Counts by level.
    observed_levels : bool
        Count only the levels that occur as parameters.
    """
    n_levels = (counts > 0).sum(axis=1) if observed_levels else counts.shape[1]
    spread = _log_factorial_rest(counts).sum(axis=1) - _log_factorial_rest(counts.sum(axis=1))
    return np.asarray(2 * spread + 2 * (n_levels - 1), dtype=np.float64)


_SMALL = np.array([0.0, *(math.lgamma(m + 1) - m * math.log(m) + m for m in range(1, 256))])


def _log_factorial_rest(counts: IntArray) -> NDArray[np.float64]:
    """Return log m! - m log m + m: exactly tabulated below 256, Stirling's series (error below 1e-15) above."""
    m = np.maximum(counts, 1).astype(np.float64)
    series = 0.5 * np.log(2 * np.pi * m) + 1 / (12 * m) - 1 / (360 * m**3)
    return np.where(counts < len(_SMALL), _SMALL[np.minimum(counts, len(_SMALL) - 1)], series)
