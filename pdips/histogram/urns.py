"""Synthetic records drawn from an urn that holds the table's records and a public prior, one cell as heavy as another.

A draw is a record's cell or a fresh cell, uniform over all cells that can occur; in a Polya urn also the cell of an
earlier draw. Smoothed histograms, McClure-Reiter and Multinomial-Dirichlet are such urns, which differ in the weight of
the prior. Draws are exact, take no table of all cells, and are made for many urns at once.

Public columns make an urn for each of their combinations, with as many draws as records.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError
from pdips.margins.domain import Domain, check_domain, domain_of
from pdips.margins.synthesis import public_records
from pdips.mechanism import Drawn
from pdips.privacy.coins import integers_below, smoothing_coins
from pdips.privacy.curator import Clock
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import Outcome

MOST_OUTCOMES = 100_000
MOST_RECORDS = 10_000_000
LARGEST_EXPONENT = 700
"""Of e, in a law that is written out in doubles. Draws have no such limit."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How an urn is drawn from.

    Parameters
    ----------
    epsilon : Fraction
        Loss of one set for one record of a person.
    polya : bool
        Whether each draw is put back with another one like it. Then a cell of the prior weighs N / (e^epsilon - 1)
        balls; if not, 1 / (e^(epsilon / N) - 1), for N draws.
    n_draws : int, optional
        N; left out, the public number of records, which public columns ask for.
    """

    epsilon: Fraction
    polya: bool
    n_draws: int | None = None


@dataclass(frozen=True, repr=False)
class Urns:
    """The records of a table as balls, sorted by urn; one urn a combination of the public columns that occurs.

    As confidential as the table.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    order : tuple of int
        Positions of the columns in the number of a cell, public ones first.
    cell : ndarray of int64, shape (records,)
        Number of the cell of each record.
    first, n_balls : ndarray of int64, shape (urns,)
        Where the records of each urn begin, and how many there are.
    possible : ndarray of int64, optional
        Numbers of the cells that can occur, where structural zeros rule some out.
    first_cell, n_cells : ndarray of int64, shape (urns,)
        Where the cells of each urn begin, in ``possible`` or else among all, and how many can occur.
    """

    domain: Domain
    order: tuple[int, ...]
    cell: IntArray
    first: IntArray
    n_balls: IntArray
    possible: IntArray | None
    first_cell: IntArray
    n_cells: IntArray

    @property
    def n_urns(self) -> int:
        """Number of urns."""
        return len(self.n_balls)

    def levels(self, cell: IntArray) -> dict[str, IntArray]:
        """Return the levels of all columns in each cell."""
        levels = np.unravel_index(cell, tuple(self.domain.sizes[list(self.order)]))
        return {self.domain.names[column]: codes for column, codes in zip(self.order, levels, strict=True)}

    def prior_cell(self, urn: IntArray, number: IntArray) -> IntArray:
        """Return the ``number``-th cell that can occur in each urn."""
        place: IntArray = self.first_cell[urn] + number
        return place if self.possible is None else self.possible[place]

    def draws(self, rule: Rule) -> IntArray:
        """Return the number of draws from each urn."""
        return self.n_balls if rule.n_draws is None else np.full(self.n_urns, rule.n_draws)


def fill(table: Table) -> Urns:
    """Return the urns of a table."""
    domain = domain_of(table.schema)
    public = [int(column) for column in domain.public]
    order = (*public, *(column for column in range(len(domain.names)) if column not in public))
    sizes = domain.sizes[list(order)]
    cell = np.sort(np.ravel_multi_index(tuple(table.codes[domain.names[column]] for column in order), tuple(sizes)))
    width = math.prod(int(size) for size in sizes[len(public) :])
    public_cell, first, n_balls = np.unique(cell // width, return_index=True, return_counts=True)
    possible, ends = possible_cells(domain, order), (public_cell * width, (public_cell + 1) * width)
    if possible is not None:
        ends = (np.searchsorted(possible, ends[0]), np.searchsorted(possible, ends[1]))
    return Urns(domain, order, cell, first, n_balls, possible, ends[0], ends[1] - ends[0])


def possible_cells(domain: Domain, order: Sequence[int]) -> IntArray | None:
    """Return the numbers of all cells that can occur, or None if all do."""
    if not domain.impossible:
        return None
    mask = np.ones(domain.sizes[list(order)], dtype=bool)
    for rule in domain.impossible:
        named = [np.flatnonzero(rule[j]) if j in rule else np.arange(domain.sizes[j]) for j in order]
        mask[np.ix_(*named)] = False
    return np.flatnonzero(mask)


def weights(urns: Urns, rule: Rule) -> tuple[IntArray, list[Fraction]]:
    """Return w and x for each urn: its prior weighs w / (e^x - 1) balls in all."""
    draws = urns.draws(rule)
    if rule.polya:
        return urns.n_cells * draws, [rule.epsilon] * urns.n_urns
    return urns.n_cells, [rule.epsilon / int(n_draws) for n_draws in draws]


def draw_cells(urns: Urns, rule: Rule, n_runs: int, bits: RandomBits) -> IntArray:
    """Draw from all urns, several times over, exactly.

    Returns
    -------
    ndarray of int64, shape (runs, draws)
        Numbers of cells, urn by urn.
    """
    prior, exponents = weights(urns, rule)
    block_urn = np.tile(np.arange(urns.n_urns), n_runs)
    size = urns.draws(rule)[block_urn]
    urn = np.repeat(block_urn, size)
    start = np.repeat(np.cumsum(size) - size, size)
    earlier = np.arange(len(urn)) - start if rule.polya else np.zeros(len(urn), dtype=np.int64)
    balls = urns.n_balls[urn] + earlier
    fresh = smoothing_coins(prior[urn], balls, exponents, urn, bits)
    number = integers_below(np.where(fresh, urns.n_cells[urn], balls), bits)
    copied = ~fresh & (number >= urns.n_balls[urn])
    own = urns.cell[urns.first[urn] + np.where(fresh | copied, 0, number)]
    own[fresh] = urns.prior_cell(urn[fresh], number[fresh])
    source = np.where(copied, start + number - urns.n_balls[urn], np.arange(len(urn)))
    return own[_roots(source)].reshape(n_runs, -1)


def _roots(source: IntArray) -> IntArray:
    """Follow each draw to the one that it copies, directly or through others."""
    while True:
        further = source[source]
        if np.array_equal(further, source):
            return source
        source = further


def synthetic_set(urns: Urns, rule: Rule, table: Table, bits: RandomBits, clock: Clock) -> pd.DataFrame:
    """Draw one synthetic set; its records are in random order, beside the public ones if there are any."""
    rng, schema = bits.generator(), table.schema
    with clock.step("drawing from the urns"):
        cell = draw_cells(urns, rule, 1, bits)[0]
    with clock.step("writing records"):
        public = [urns.domain.names[column] for column in urns.domain.public]
        cell = cell[np.lexsort((rng.random(len(cell)), np.repeat(np.arange(urns.n_urns), urns.draws(rule))))]
        codes = {name: found for name, found in urns.levels(cell).items() if name not in public}
        frame = decode(schema, codes, rng)
        if public:
            frame = pd.concat([public_records(table, public), frame], axis=1)
        return frame[list(urns.domain.names)]


def observe(table: Table, rule: Rule, n_sets: int, n_runs: int, bits: RandomBits) -> IntArray:
    """Return the counts of independent synthetic sets in all cells, shape (runs, sets times cells)."""
    urns = fill(table)
    n_cells, row = urns.domain.n_cells, np.arange(n_runs * n_sets)[:, None]
    drawn = draw_cells(urns, rule, n_runs * n_sets, bits)
    counts = np.bincount((row * n_cells + drawn).ravel(), minlength=n_runs * n_sets * n_cells)
    return counts.reshape(n_runs, n_sets * n_cells)


def outcomes(table: Table, rule: Rule) -> list[Outcome]:
    """Return every synthetic set of a tiny table, as counts of its cells, with its probability.

    Raises
    ------
    InputError
        If there are too many to enumerate.
    """
    urns = fill(table)
    draws = urns.draws(rule)
    n_each = [math.comb(int(n + k) - 1, int(n)) for n, k in zip(draws, urns.n_cells, strict=True)]
    if max(weights(urns, rule)[1]) > LARGEST_EXPONENT:
        raise InputError(f"epsilon is too large to write out probabilities; the limit is {LARGEST_EXPONENT} a draw")
    if math.prod(n_each) > MOST_OUTCOMES:
        raise InputError("too many synthetic sets to enumerate; use fewer records, columns or levels")
    found = []
    for parts in product(*(list(_urn_outcomes(urns, rule, urn)) for urn in range(urns.n_urns))):
        counts = sum((part for part, _ in parts), Counter[int]())
        key = tuple(counts[cell] for cell in range(urns.domain.n_cells))
        found.append(Outcome(key=key, log_probability=math.fsum(log for _, log in parts)))
    return found


def _urn_outcomes(urns: Urns, rule: Rule, urn: int) -> Iterator[tuple[Counter[int], float]]:
    """Yield the counts that one urn can give, and their log probability."""
    prior, exponents = weights(urns, rule)
    n_draws, n_balls = int(urns.draws(rule)[urn]), int(urns.n_balls[urn])
    alpha = float(prior[urn]) / math.expm1(float(exponents[urn])) / int(urns.n_cells[urn])
    has = Counter(urns.cell[urns.first[urn] :][:n_balls].tolist())
    cells = urns.prior_cell(np.full(urns.n_cells[urn], urn), np.arange(urns.n_cells[urn])).tolist()
    total = n_balls + alpha * len(cells)
    for drawn in combinations_with_replacement(cells, n_draws):
        counts = Counter(drawn)
        log = math.lgamma(n_draws + 1) - sum(math.lgamma(count + 1) for count in counts.values())
        for cell, count in counts.items():
            log += sum(math.log(has[cell] + alpha + t * rule.polya) for t in range(count))
        yield counts, log - sum(math.log(total + t * rule.polya) for t in range(n_draws))


def share_of_records(n_records: int, n_cells: int, rule: Rule) -> float:
    """Return the share of the draws that go back to a record and not to the prior."""
    n_draws = n_records if rule.n_draws is None else rule.n_draws
    exponent, times = (rule.epsilon, n_draws) if rule.polya else (rule.epsilon / n_draws, 1)
    with np.errstate(over="ignore"):
        weight = times / float(np.expm1(float(exponent)))
    return n_records / (n_records + n_cells * weight)


def check_one_set(n_sets: int) -> None:
    """Refuse more than one set, where all would come from the same proportions."""
    if isinstance(n_sets, int) and n_sets > 1:
        raise InputError(
            f"n_sets must be at most 1, got {n_sets}: each further set from the same proportions would cost epsilon "
            "again; make several releases, each at its share of epsilon"
        )


def check_n_records(n_records: int | None, neighbours: Neighbours) -> None:
    """Check the public number of synthetic records of a mechanism.

    Raises
    ------
    InputError
        If it is out of range, or missing where the table's own number of records is confidential.
    """
    if n_records is None:
        if neighbours == "add-remove":
            raise InputError(
                "neighbours = add-remove protects the number of records, so give the number of synthetic ones: "
                "n_records, from public knowledge"
            )
    elif isinstance(n_records, bool) or not isinstance(n_records, int) or not 1 <= n_records <= MOST_RECORDS:
        raise InputError(f"n_records must be a whole number from 1 to {MOST_RECORDS:,}, got {n_records}")


def check_schema(schema: Schema, neighbours: Neighbours, n_records: int | None) -> None:
    """Check, before anything is spent, that urns can be made of tables of this schema."""
    check_domain(schema, neighbours)
    if schema.public_columns and n_records is not None:
        raise InputError("with public columns the synthetic sets have the table's public records: leave n_records out")


def draw_sets(table: Table, rule: Rule, n_sets: int, bits: RandomBits, clock: Clock) -> Drawn:
    """Draw synthetic sets, each from urns of its own."""
    with clock.step("filling the urns"):
        urns = fill(table)
    return Drawn(sets=[synthetic_set(urns, rule, table, bits, clock) for _ in range(n_sets)])
