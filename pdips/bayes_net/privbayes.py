"""PrivBayes: a Bayesian network chosen greedily, noisy joint tables of its families, and records drawn from them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.bayes_net import network as networks
from pdips.bayes_net import sampling
from pdips.bayes_net.network import Columns, Counts, Grower, Network, Score, Shape
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError
from pdips.margins.counts import noisy_counts
from pdips.margins.domain import columns_of
from pdips.margins.synthesis import of_set, public_records
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, choice, exact
from pdips.privacy.noise import LARGEST_SCALE, RandomBits, discrete_laplace_variance
from pdips.privacy.plan import Noise
from pdips.privacy.replay import ExactLaw as Law
from pdips.privacy.replay import Outcome
from pdips.release.release import Release, RunRecord

MOST_CANDIDATES = 1_000_000
"""A round has no more families to choose from than this."""


@dataclass(frozen=True, kw_only=True)
class PrivBayes:
    """A Bayesian network of low degree: columns are synthesized one after the other, each given a few earlier ones.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one"}
        The number of records is public, and all sets have it.
    degree : int
        Largest number of parents of a column.
    network_share : int, float, str or Fraction
        Part of the budget for choosing the network; 1/2 in Zhang et al. and in paper 000. Nothing is spent on it where
        one joint table holds all columns.
    score : {"r", "mi"}
        What tells families apart: distance from independence in total variation, or mutual information.
    usefulness : int, float, str or Fraction
        Joint tables whose cells would hold on average fewer records than this many times the scale of their noise
        are not considered (the theta of Zhang et al., who use 4); 0 considers all. It reads public facts only, so it
        costs nothing.
    split : {"once", "per-set"}
        One network and one set of noisy tables for all sets, or everything anew, at epsilon / n_sets, for each.
    variant : {"sound", "published"}
        ``"published"`` adds noise of scale 2 (d - k) / (n epsilon) to *counts*, as the DataSynthesizer code that paper
        000 ran did until March 2021: n times too small, kind "none", for studies only.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Neighbours: replace-one. Each round chooses a family by the exponential mechanism. The score R n^2 is a whole number
    and moves by at most 3 (n - 1), or 2 (n - 1) for binary families; mutual information by lemma 1 of Zhang et al.,
    rounding allowed for. Replacing a record changes two cells of each joint table by 1, so T tables with noise of
    scale 2 T / epsilon_2 cost epsilon_2. What follows is post-processing. Proof: ``docs/proofs/privbayes.md``.

    References
    ----------
    Zhang, Cormode, Procopiuc, Srivastava and Xiao (2017), PrivBayes, ACM TODS 42(4); (2014), SIGMOD.
    """

    name: ClassVar[str] = "privbayes"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    variants: ClassVar[tuple[Variant, ...]] = ("sound", "published")
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    degree: int = 2
    network_share: Number = Fraction(1, 2)
    score: Score = "r"
    usefulness: Number = 4
    split: Split = "once"
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant, split=self.split)
        choice(self.score, get_args(Score), "score")
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or self.degree < 1:
            raise InputError(f"degree must be a whole number of at least 1, got {self.degree}")
        if not 0 < exact(self.network_share, "network_share") < 1:
            raise InputError(f"network_share must be above 0 and below 1, got {self.network_share}")
        if exact(self.usefulness, "usefulness") < 0:
            raise InputError(f"usefulness must be at least 0, got {self.usefulness}")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        epsilon = exact(self.epsilon, "epsilon")
        if self.variant == "published":
            flaw = (
                "NO GUARANTEE. As published in code: noise for shares of records, of scale 2 (d - k) / (n epsilon_2), "
                "added to counts, whose sensitivity is n times larger. The joint tables cost n times what is claimed."
            )
            return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", statement=flaw)
        law = (
            "A Bayesian network was chosen family by family by the exponential mechanism, paid for; every cell of the "
            "joint tables of its families that can occur has exact discrete Laplace noise on its count."
        )
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=statement(self, schema, law)
        )

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: the network and the joint tables of each set."""
        self._check(schema)
        network, tables = self.budget(schema)
        items = []
        for number in range(1, self._n_models() + 1):
            suffix = of_set(number, self._n_models())
            if network:
                items.append(Spend(step=f"choice of the network{suffix}", epsilon=network))
            items.append(Spend(step=f"noisy joint tables{suffix}", epsilon=tables))
        return tuple(items)

    def _check(self, schema: Schema) -> None:
        shape = self._shape(schema)
        if not shape.free:
            raise InputError("all columns of the schema are public: there is nothing to synthesize")
        for name, size in zip(shape.domain.names, shape.domain.sizes, strict=True):
            if size > networks.MOST_TABLE_CELLS:
                raise InputError(f"column {name!r} has more than {networks.MOST_TABLE_CELLS:,} levels; give fewer")
        if shape.most_candidates > MOST_CANDIDATES:
            raise InputError(
                f"a round would have more than {MOST_CANDIDATES:,} families to choose from; use a smaller degree"
            )
        if self.scale(schema, len(shape.free)) > LARGEST_SCALE:
            raise InputError("epsilon is too small: noise of this scale is beyond what can be drawn exactly")

    def _n_models(self) -> int:
        return self.n_sets if self.split == "per-set" else 1

    def _shape(self, schema: Schema, n_records: int | None = None) -> Shape:
        """Return which families there could be; ``usefulness`` needs the number of records, which is public."""
        shape = Shape(columns_of(schema), self.degree, networks.MOST_TABLE_CELLS)
        usefulness = exact(self.usefulness, "usefulness")
        if not usefulness or n_records is None:
            return shape
        least = usefulness * self.scale(schema, max(len(shape.domain.names) - self.degree, 1))
        return Shape(shape.domain, self.degree, min(shape.most_cells, math.floor(n_records / least)))

    def budget(self, schema: Schema) -> tuple[Fraction, Fraction]:
        """Return the epsilon of the network, and of the joint tables, of one set, for one person."""
        epsilon = exact(self.epsilon, "epsilon") / self._n_models()
        share = exact(self.network_share, "network_share") if self._shape(schema).n_rounds else Fraction(0)
        return share * epsilon, (1 - share) * epsilon

    def scale(self, schema: Schema, n_tables: int) -> Fraction:
        """Return the scale of the noise on each cell of ``n_tables`` joint tables, in records."""
        return 2 * schema.records.max_per_person * n_tables / self.budget(schema)[1]

    def _scale(self, table: Table, n_tables: int) -> Fraction:
        if self.variant == "published":
            return 2 * n_tables / (table.n_records * self.budget(table.schema)[1])
        return self.scale(table.schema, n_tables)

    def _grower(self, table: Table) -> Grower:
        shape = self._shape(table.schema, table.n_records)
        price = self.budget(table.schema)[0] / max(shape.n_rounds, 1) / table.schema.records.max_per_person
        return Grower(shape, self.score, price)

    def _measure(
        self, table: Table, counts: Counts, network: Network, bits: RandomBits, n_runs: int = 1
    ) -> dict[Columns, IntArray]:
        """Return the noisy joint tables of a network, shape (runs, cells) each."""
        columns, domain = networks.tables_of(network), columns_of(table.schema)
        scale = self._scale(table, len(columns))
        return {
            one: noisy_counts(
                counts.joint(one).ravel(), sampling.possible_cells(domain, one).ravel(), scale, bits, n_runs
            )
            for one in columns
        }

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return networks and noisy joint tables of independent releases, one a row, for audits of tiny tables.

        A family is two numbers, its column and the sum of 2^parent; rows are filled up with zeros.
        """
        self._check(table.schema)
        grower, counts, models = self._grower(table), Counts(table, columns_of(table.schema)), []
        width = networks.most_numbers(grower.shape)
        for _ in range(self._n_models()):
            blocks = []
            for network, times in grower.draw(counts, n_runs, bits):
                noisy = self._measure(table, counts, network, bits, times)
                key = np.tile(np.array(networks.key_of(network, grower.shape), dtype=np.int64), (times, 1))
                block = np.concatenate([key, *noisy.values()], axis=1)
                blocks.append(np.pad(block, ((0, 0), (0, width - block.shape[1]))))
            rows = np.concatenate(blocks)
            models.append(rows[bits.generator().permutation(len(rows))])
        return np.concatenate(models, axis=1)

    def law(self, table: Table) -> Law:
        """Return the exact law, for audits of tiny tables."""
        self._check(table.schema)
        grower, domain = self._grower(table), columns_of(table.schema)
        counts, outcomes = Counts(table, domain), []
        for network, log_probability in grower.outcomes(counts):
            columns = networks.tables_of(network)
            possible = np.concatenate([sampling.possible_cells(domain, one).ravel() for one in columns])
            scale = self._scale(table, len(columns))
            outcomes.append(
                Outcome(
                    key=networks.key_of(network, grower.shape),
                    log_probability=log_probability,
                    statistics=tuple(int(count) for one in columns for count in counts.joint(one).ravel()),
                    scales=tuple(scale if here else Fraction(0) for here in possible),
                )
            )
        return Law(outcomes=outcomes, repeats=self._n_models())

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {
            **asdict(self),
            "epsilon": as_float(exact(self.epsilon, "epsilon")),
            "network_share": float(exact(self.network_share, "network_share")),
            "usefulness": float(exact(self.usefulness, "usefulness")),
        }

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
            If the schema has unbinned columns, a column with too many levels or too many columns for the degree, the
            ledger belongs to another table, or no noisy network gives a record that the schema calls possible.
        RefusedError
            If the ledger's total would be overspent.
        """
        if table.n_records > networks.MOST_RECORDS:
            raise InputError(f"privbayes takes at most {networks.MOST_RECORDS:,} records")

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            return self._draw(table, bits, clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)

    def _draw(self, table: Table, bits: RandomBits, clock: Clock) -> Drawn:
        grower, domain = self._grower(table), columns_of(table.schema)
        counts, n_each = Counts(table, domain), self.n_sets // self._n_models()
        sets: list[pd.DataFrame] = []
        statistics: dict[str, pd.DataFrame] = {}
        noise: dict[int, Noise] = {}
        for number in range(1, self._n_models() + 1):
            with clock.step("choosing the network"):
                ((network, _),) = grower.draw(counts, 1, bits)
            with clock.step("counting and adding noise"):
                noisy = {one: rows[0] for one, rows in self._measure(table, counts, network, bits).items()}
            noise[len(noisy)] = _noise(self._scale(table, len(noisy)), len(noisy))
            prefix = f"set {number}, " if self._n_models() > 1 else ""
            statistics |= _statistics(network, noisy, domain.names, domain.sizes, prefix)
            with clock.step("drawing synthetic sets"):
                sets += _synthesize(network, noisy, table, n_each, bits)
        return Drawn(sets=sets, statistics=statistics, noise=tuple(noise.values()))


def _noise(scale: Fraction, n_tables: int) -> Noise:
    spread = math.sqrt(discrete_laplace_variance(scale))
    tables = f"the {n_tables} joint tables" if n_tables > 1 else "the joint table"
    return Noise(statistics=f"each cell of {tables}", scale=float(scale), standard_deviation=spread)


def _statistics(
    network: Network, noisy: Mapping[Columns, IntArray], names: tuple[str, ...], sizes: IntArray, prefix: str
) -> dict[str, pd.DataFrame]:
    """Return the network, and each joint table with the levels of its columns and the noisy count."""
    families = [(names[child], ", ".join(names[parent] for parent in parents)) for child, parents in network]
    found = {f"{prefix}network": pd.DataFrame(families, columns=["attribute", "parents"])}
    for columns, counts in noisy.items():
        levels = np.unravel_index(np.arange(len(counts)), sizes[list(columns)])
        frame = pd.DataFrame({names[column]: level for column, level in zip(columns, levels, strict=True)})
        label = ", ".join(names[column] for column in columns)
        found[f"{prefix}table {label}"] = frame.assign(noisy_count=counts)
    return found


def _synthesize(
    network: Network, noisy: Mapping[Columns, IntArray], table: Table, n_sets: int, bits: RandomBits
) -> list[pd.DataFrame]:
    """Draw synthetic sets. Of the table it reads the public columns and the number of records, which is public."""
    schema, domain, rng = table.schema, columns_of(table.schema), bits.generator()
    laws = sampling.conditionals(network, domain, noisy, table.n_records)
    names = list(schema.public_columns)
    order = np.lexsort([table.codes[name] for name in reversed(names)]) if names else np.empty(0, np.int64)
    given = {domain.names.index(name): table.codes[name][order] for name in names}
    sets = []
    for _ in range(n_sets):
        codes = sampling.sample(network, domain, laws, given, table.n_records, rng)
        made = decode(schema, {domain.names[column]: codes[column] for column, _ in sorted(network)}, rng)
        sets.append(pd.concat([public_records(table, names), made], axis=1)[list(domain.names)] if names else made)
    return sets
