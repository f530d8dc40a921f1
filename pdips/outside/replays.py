"""The replay certificate: whether intervals from a release hold, tried on tables like
its sets and noisy counts.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.partitions import client_of
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.document import open_release
from pdips.evaluation.encoding import codes_of, subsets, with_decile_bins
from pdips.evaluation.formula import Analysis, read_analysis
from pdips.fields.targets import PairTarget
from pdips.inference import combine
from pdips.inference.rules import nearest_rule
from pdips.margins.pair_tables import pair_counts
from pdips.mechanism import Mechanism
from pdips.outside.noisy_margins import NoisyMargins
from pdips.privacy.answers import PublicFacts
from pdips.registry import MECHANISMS, find
from pdips.release.answers import read_answers
from pdips.release.certificate import Certificate, Covered
from pdips.release.documents import PrivacyDocument
from pdips.release.folder import file_digest, read_tables
from pdips.release.release import Release

ANSWERS = "answers"  # The name of the table of answers
REPLAYS = 200
MOST_MARGINS = 200  # Pairs and triples of columns that are looked at, of each
# Cells of more records than this, in a table as large as the release's, are looked at
FEWEST = 50
# Rounds of proportional fitting, and what counts for none in it
RAKED = 10
LEAST = 1e-9

Progress = Callable[[str], object]
type Intervals = dict[str, tuple[FloatArray, FloatArray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """Records that tables are drawn from, of which everything is known: for replays
    those of all sets of a release.
    """

    records: pd.DataFrame
    given: Schema  # of the release
    schema: Schema  # of the sets, with numeric columns without bins cut at deciles
    n_records: int
    margins: dict[str, list[tuple[int, ...]]]
    analysis: Analysis | None

    @classmethod
    def of(
        cls,
        records: pd.DataFrame,
        given: Schema,
        n_records: int,
        formula: str | None,
        rng: np.random.Generator,
    ) -> "Population":
        """Return a population, and what is asked of it: all levels, and pairs and
        triples of columns.
        """
        schema = with_decile_bins(Table(records, given.without_person())).schema
        n = len(schema.columns)
        margins = {
            name: subsets(n, k, MOST_MARGINS, rng)
            for k, name in ((1, "levels"), (2, "pairs"), (3, "triples"))
        }
        analysis = None if formula is None else read_analysis(formula, given)
        named = {name: found for name, found in margins.items() if found}
        return cls(records, given, schema, n_records, named, analysis)

    def shares(self, frame: pd.DataFrame, margins: list[tuple[int, ...]]) -> FloatArray:
        """Return the shares of all cells of some margins, shape (cells,)."""
        codes = codes_of(frame, self.schema)
        found = list[FloatArray]()
        sizes = [column.n_levels for column in self.schema.columns.values()]
        for columns in map(list, margins):
            shape = tuple(sizes[k] for k in columns)
            cells = np.ravel_multi_index(tuple(codes[:, columns].T), shape)
            found.append(np.bincount(cells, minlength=int(np.prod(shape))) / len(frame))
        return np.concatenate(found)

    def answers(self, frame: pd.DataFrame) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Return estimates and their sampling variances by kind of number."""
        answers = {}
        for name, margins in self.margins.items():
            shares = self.shares(frame, margins)
            answers[name] = shares, shares * (1 - shares) / len(frame)
        if self.analysis is not None:
            fit = self.analysis.fit(frame)
            answers[self.analysis.formula] = fit.estimates, fit.standard_errors**2
        return answers


def certify(
    directory: str | Path,
    *,
    replays: int = REPLAYS,
    formula: str | None = None,
    scheduler: str | None = None,
    rng: np.random.Generator | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Replay a release from its public files, and say how often intervals from its sets
    hold.

    The population is the records of all sets, weighted so that they agree with the
    noisy counts of pairs that the release publishes: a fit that misses these misses
    them in replays, too. Each replay draws a table of as many records from it, releases
    this by the same mechanism with the same settings and fresh noise, and asks whether
    95 % intervals by the release's rule hold the population's values. Nothing but
    public files is read: it costs nothing.

    Parameters
    ----------
    directory : path
        A release folder or its public folder.
    replays : int
        At least 2; 200 have a standard error of 1.5 points for one coefficient.
    formula : str, optional
        A regression to look at besides shares of levels, pairs and triples, such as
        ``"voted ~ age"``.
    scheduler : str, optional
        The dask scheduler whose workers run replays, or ``"local"``, for processes on
        this machine.
    rng : numpy.random.Generator, optional
        For tests.
    progress : callable, optional
        Told of each replay.

    Raises
    ------
    InputError
        If the release has fewer than two sets, isn't from a mechanism that counts, has
        files that were changed, or the analysis doesn't fit it.

    Examples
    --------
    >>> schema = Schema.model_validate(
    ...     {"columns": {name: {"levels": [0, 1]} for name in "ab"}}
    ... )
    >>> table = Table(
    ...     pd.DataFrame({"a": [0, 1] * 200, "b": [1, 1, 0, 1] * 100}), schema
    ... )
    >>> Margins(epsilon=4, n_sets=5).release(table)[0].write("out/public")
    >>> [row.what for row in certify("out", replays=2).rows]
    ['levels', 'pairs']
    """
    if isinstance(replays, bool) or not isinstance(replays, int) or replays < 2:
        raise InputError(f"replays must be a whole number, at least 2, got {replays}")
    release = open_release(directory, received=True)
    for name, digest in (release.document.digests or {}).items():
        path = release.home / name
        is_set = name.startswith("synthetic_") and path.is_file()
        if is_set and file_digest(path) != digest:
            raise InputError(
                f"{path} isn't the file that was published: its digest "
                f"in privacy.json is another"
            )
    if len({len(each) for each in release.sets}) > 1:
        raise InputError(
            f"the sets in {release.home} have different numbers of "
            f"records: one of them was changed"
        )
    mechanism = mechanism_of(release.document)
    rng = np.random.default_rng() if rng is None else rng
    # where none is right, the nearest is what is to be tried
    rule, _ = nearest_rule(release.document.contents())
    records = pd.concat(release.sets, ignore_index=True)
    agreed = None
    if release.document.margins and release.home.name != "confidential":
        margins = NoisyMargins.read(release.home)
        codes = coded(margins, release.sets)
        agreed = agreement(margins, codes, len(release.sets))
        records = records.iloc[raked(margins, codes, rng)].reset_index(drop=True)
    population = Population.of(
        records, release.schema, len(release.sets[0]), formula, rng
    )
    rows = coverage(
        mechanism,
        population,
        rule,
        replays,
        scheduler=scheduler,
        rng=rng,
        progress=progress,
    )
    digest = file_digest(release.home / PrivacyDocument.file)
    return Certificate(
        release=digest, replays=replays, rule=rule, rows=rows, agreement=agreed
    )


def coverage(
    mechanism: Mechanism,
    population: Population,
    rule: str,
    replays: int,
    *,
    rng: np.random.Generator,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> list[Covered]:
    """Return how often 95 % intervals of releases of tables drawn from a population
    hold its values.
    """
    truth = {
        name: estimate
        for name, (estimate, _) in population.answers(population.records).items()
    }
    asked = dict[str, BoolArray]()
    for name, values in truth.items():
        kept = np.isfinite(values)
        if name in population.margins:
            kept = values * population.n_records > FEWEST
        if kept.any():
            asked[name] = kept
    held: dict[str, list[float]] = {name: [] for name in asked}
    streams = rng.spawn(replays)
    with ExitStack() as stack:
        replayed = _replayed(mechanism, population, rule, streams, scheduler, stack)
        for number, intervals in enumerate(replayed, start=1):
            if progress is not None:
                progress(f"replay {number} of {replays}")
            for name, kept in asked.items():
                low, high = intervals[name]
                covers = (low <= truth[name]) & (truth[name] <= high)
                held[name].append(float(covers[kept].mean()))
    rows = []
    for name, shares in held.items():
        rows.append(
            Covered(
                what=name,
                covered=float(np.mean(shares)),
                standard_error=_error_of_share(shares),
                numbers=int(asked[name].sum()),
            )
        )
    return rows


def _replayed(
    mechanism: Mechanism,
    population: Population,
    rule: str,
    streams: Sequence[np.random.Generator],
    scheduler: str | None,
    stack: ExitStack,
) -> Iterator[Intervals]:
    """Return the intervals of each replay, made here or by the workers of a
    scheduler.
    """
    if scheduler is None:
        return (_replay(mechanism, population, rule, each) for each in streams)
    from distributed import as_completed

    client = stack.enter_context(client_of(scheduler, len(streams)))
    everywhere = client.scatter(population, broadcast=True)
    futures = [
        client.submit(_replay, mechanism, everywhere, rule, each, pure=False)
        for each in streams
    ]
    return (future.result() for future in as_completed(futures))


def _error_of_share(shares: Sequence[float]) -> float:
    """Return the standard error of a mean of shares; Agresti and Coull's, where all
    intervals held.
    """
    n = len(shares)
    error = float(np.std(shares, ddof=1) / np.sqrt(n))
    if error == 0 and min(shares) == 1:
        return math.sqrt(2 * (n + 2) / (n + 4) ** 3)
    return error


def mechanism_of(document: PrivacyDocument) -> Mechanism:
    """Return the mechanism that made a release, with its public settings."""
    kind = None
    names = set[str]()
    if document.mechanism in MECHANISMS:
        kind = find(document.mechanism)
        names = {each.name for each in dataclasses.fields(kind)}
    if kind is None or "model" in names or "variant" in document.settings:
        raise InputError(
            f"{document.mechanism} can't be replayed: a certificate is for releases "
            f"of mechanisms that count, as they "
            "come with pdips; check a model's intervals by simulated tables "
            "(docs/inference.md)"
        )
    settings = dict[str, Any]()
    for name, value in document.mechanism_settings.items():
        if name in names and value is not None:
            settings[name] = tuple(value) if isinstance(value, list) else value
    mechanism: Mechanism = kind(**settings)
    return mechanism


def more_sets(
    source: str | Path | Release, n_sets: int, *, rng: np.random.Generator | None = None
) -> list[pd.DataFrame]:
    """Draw more sets of the answers that a release has published, at no cost.

    Sets of noisy margins are each drawn with fresh noise of the same law on top
    (``sets="posterior"``), so intervals are for these sets together:
    ``combine(estimates, variances, rule="between")``. Don't mix them with sets of
    ``sets="fitted"``.

    Parameters
    ----------
    source : path or Release
        A release, or its public folder.
    n_sets : int
        How many sets.
    rng : numpy.random.Generator, optional
        Left out, a new one: it protects nothing here.

    Returns
    -------
    list of DataFrame
        Of as many records as the first, a noisy number under add-remove.

    Raises
    ------
    InputError
        If the release publishes no answers or each of its sets has noise of its own,
        its mechanism has a model that isn't a formula by group or isn't one of pdips,
        or its files aren't those of its ``privacy.json``.

    Examples
    --------
    >>> schema = Schema.model_validate(
    ...     {"columns": {name: {"levels": [0, 1]} for name in "ab"}}
    ... )
    >>> table = Table(pd.DataFrame({"a": [0, 1] * 50, "b": [1] * 100}), schema)
    >>> release, _ = Margins(epsilon=1).release(table)
    >>> [len(frame) for frame in more_sets(release, 3)]
    [100, 100, 100]
    """
    if isinstance(source, Release):
        return source.more_sets(n_sets, rng=rng)
    opened = open_release(source, received=True)
    document, tables = read_tables(opened.home, ANSWERS)
    if not document.answers or ANSWERS not in tables:
        raise InputError(
            f"{opened.home} publishes no answers that more sets could be drawn of: "
            f"they were too many, or no numbers"
        )
    try:
        answers = read_answers(document.answers, tables[ANSWERS])
    except ValueError as error:
        raise InputError(f"answers in {opened.home}: {error}") from None
    schema = document.table_schema
    mechanism = None
    if document.mechanism in MECHANISMS:
        kind = find(document.mechanism)
        mechanism = kind.of_published(document.mechanism_settings, schema)
    if mechanism is None:
        mechanism = mechanism_of(document)
    public = PublicFacts(document.n_records)
    if document.n_records is None:
        first = Table(opened.sets[0], schema.without_person())
        is_public = mechanism.neighbours == "replace-one"
        public = PublicFacts.of(first, n_public=is_public)
    rng = np.random.default_rng() if rng is None else rng
    return mechanism.more_sets(schema, answers, public, n_sets, rng)


def _replay(
    mechanism: Mechanism, population: Population, rule: Any, rng: np.random.Generator
) -> Intervals:
    """Return the intervals of a replay by kind of number."""
    table = population.records.sample(
        population.n_records, replace=True, random_state=rng, ignore_index=True
    )
    # the price is that of a person's cap, whoever the persons are
    if population.given.records.person is not None:
        table[population.given.records.person] = np.arange(len(table))
    with warnings.catch_warnings():
        # what settings bring with them was said of the release
        warnings.simplefilter("ignore")
        release, _ = mechanism.release(Table(table, population.given), rng=rng)
    each = [population.answers(frame) for frame in release.sets]
    found: Intervals = {}
    for name in each[0]:
        estimates, variances = (
            np.stack([one[name][k] for one in each]) for k in (0, 1)
        )
        with np.errstate(all="ignore"):
            found[name] = combine(estimates, variances, rule=rule).interval
    return found


def coded(margins: NoisyMargins, frames: Sequence[pd.DataFrame]) -> NDArray[np.int32]:
    """Return the block levels of all records, shape (records, blocks), as the noisy
    margins count them.
    """
    plain = margins.schema.plain()
    found = list[NDArray[np.int32]]()
    columns = margins.schema.columns
    for frame in frames:
        own = Schema(
            columns={
                name: plain.columns[name] for name in frame if name in plain.columns
            }
        )
        codes = dict(Table(frame[[*own.columns]], own).codes)
        # groups of the levels of a column
        for name in [name for name in columns if name not in codes]:
            base = name.removesuffix("_groups")
            codes[name] = np.array(columns[base].grouped()[1])[codes[base]]
        in_order = [codes[name] for name in margins.design.domain.names]
        found.append(margins.design.codes(in_order))
    return np.concatenate(found)


def agreement(
    margins: NoisyMargins, codes: NDArray[np.int32], n_sets: int
) -> Covered | None:
    """Return the share of noisy counts of levels and pairs that the sets agree with.

    As far as the noise on the counts, the fresh noise of the sets' own fits and
    sampling let them. None where nothing was counted. The standard error is that of
    independent numbers, as many as the margins have degrees of freedom.
    """
    design = margins.design
    seen = margins.found
    near = list[BoolArray]()
    freedom = 0
    ones = np.ones(len(codes), dtype=np.int64)
    mean = pair_counts(codes, ones, design.offsets) / n_sets
    sampling = mean * (1 - mean * n_sets / len(codes))
    for margin, variance in seen.variances.items():
        noise = design.cell_variance(margin, seen.variances)
        if margin and variance > 0 and np.isfinite(noise):
            noisy = design.margin(seen.counts, margin)
            off = np.abs(noisy - design.margin(mean, margin))
            spread = noise * (1 + 1 / n_sets) + design.margin(sampling, margin)
            near.append((off <= 1.96 * np.sqrt(spread)).ravel())
            freedom += math.prod(size - 1 for size in design.shape(margin))
    if not near:
        return None
    agreed = np.concatenate(near)
    by_chance = math.sqrt(0.05 * 0.95 / max(freedom, 1))
    return Covered(
        what="noisy counts",
        covered=float(agreed.mean()),
        standard_error=by_chance,
        numbers=len(agreed),
    )


def raked(
    margins: NoisyMargins, codes: NDArray[np.int32], rng: np.random.Generator
) -> IntArray:
    """Return which records make a population that agrees with the noisy pairs, some of
    them several times, or never.

    Records are weighted by iterative proportional fitting to the pairs as far as they
    stand out from the noise, and drawn by systematic sampling.
    """
    seen = margins.found
    weights = np.ones(len(codes))
    target = PairTarget.of(seen).shrunk
    sizes = seen.sizes
    for _ in range(RAKED):
        for i, j in combinations(range(len(sizes)), 2):
            if 0 < seen.variance[i, j] < np.inf:
                cell = codes[:, i] * sizes[j] + codes[:, j]
                now = np.bincount(cell, weights, minlength=sizes[i] * sizes[j])
                wanted = margins.design.margin(target, (i, j)).ravel()
                weights *= (wanted / np.maximum(now, LEAST))[cell]
    order = rng.permutation(len(codes))
    ends = np.cumsum(weights[order])
    n = len(codes)
    at = (np.arange(n) + rng.random()) / n * ends[-1]
    places = np.minimum(np.searchsorted(ends, at), n - 1)
    return np.asarray(order[places])
