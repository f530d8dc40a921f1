"""Unbiased estimates of all pairs, from whichever noisy margins there are, and which pairs say most by them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.chains import NoisyPairs, NoisyTriple
from pdips.margins.residuals import ResidualDesign, pair_counts
from pdips.privacy.plan import Step
from pdips.release.noisy_margins import MarginAxis, MarginLaw, MeasuredMargin, centred, residual

EXACT = 1e-6
"""Variance of counts that public totals know: next to nothing, for 0 would mean that a pair isn't to be fitted."""


def estimate(
    design: ResidualDesign,
    step: Step,
    noisy: IntArray,
    n_records: int | None,
    public: Table | None = None,
    known: Mapping[int, tuple[FloatArray, float]] | None = None,
    again: Sequence[MeasuredMargin] = (),
) -> NoisyPairs:
    """Return unbiased estimates of all pairs from the noisy answer of a plan, and pairs counted ``again``.

    ``known`` has the counts of levels of blocks that weren't counted alone, and the variance of one.
    """
    margins = [*measured(design, step, noisy, block_axes(design), known or {}), *again]
    whole = {margin: part for margin, part in design.parts(noisy) if len(margin) == 3}
    triples = tuple(NoisyTriple(m, centred(part.astype(float)), design.variance(m, step)) for m, part in whole.items())
    return replace(pooled(design, margins, n_records, public, design.covered), triples=triples)


def most_telling(
    design: ResidualDesign,
    step: Step,
    found: NoisyPairs,
    pairs: Sequence[tuple[int, int]],
    n_pairs: int,
    shown: IntArray,
) -> IntArray:
    """Return which of some pairs say most beyond their columns by noisy answers, in records and less what noise says.

    Parameters
    ----------
    found : NoisyPairs
        Where columns are taken from that the answers don't count alone.
    shown : ndarray of int64, shape (..., numbers)
        The answers.

    Returns
    -------
    ndarray of int64, shape (..., n_pairs)
        In the order of ``pairs``.
    """
    parts, size, told = dict(design.parts(shown)), design.sizes, list[FloatArray]()
    beyond = {
        m: (residual if design.differs(m) else centred)(part.astype(float), len(m)) for m, part in parts.items() if m
    }
    total = np.maximum(parts.get((), np.full(shown.shape[:-1], found.n)), 1.0)[..., None]
    shares = list[FloatArray]()
    for k in range(len(size)):
        counts = beyond[k,] + total / size[k] if (k,) in beyond else design.margin(found.counts, (k,))
        raised = np.maximum(counts, 1e-9 * total)
        shares.append(raised / raised.sum(axis=-1, keepdims=True) - 1 / size[k])
    for i, j in pairs:
        apart = beyond[i, j] - total[..., None] * shares[i][..., :, None] * shares[j][..., None, :]
        cells = math.sqrt(2 / math.pi * design.variance((i, j), step) * math.prod((size[[i, j]] - 1) * size[[i, j]]))
        told.append(np.abs(apart).sum(axis=(-1, -2)) - cells)
    return np.sort(np.argsort(-np.stack(told, axis=-1), axis=-1, kind="stable")[..., :n_pairs], axis=-1)


def block_axes(
    design: ResidualDesign,
    lower: Mapping[str, tuple[float, ...]] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> list[MarginAxis]:
    """Return the axis of each block, with lower bounds of the intervals and groups of the codes of columns."""
    names, sizes, found = design.domain.names, design.domain.sizes, list[MarginAxis]()
    for block in design.blocks:
        codes = np.ravel_multi_index(tuple(block.levels.T), tuple(sizes[list(block.columns)]))
        columns = tuple(names[column] for column in block.columns)
        tied = tuple(codes.tolist()) if len(columns) > 1 else ()
        begun, held = (lower or {}).get(columns[0], ()), (groups or {}).get(columns[0], ())
        found.append(MarginAxis(columns=columns, size=block.n_levels, codes=tied, lower=begun, groups=held))
    return found


def measured(
    design: ResidualDesign,
    step: Step,
    noisy: IntArray,
    axes: Sequence[MarginAxis],
    known: Mapping[int, tuple[FloatArray, float]],
) -> Iterator[MeasuredMargin]:
    """Yield the measured margins of a noisy answer, and what is known of blocks otherwise."""
    for block_number, (counts, variance) in known.items():
        law = MarginLaw(
            axes=(axes[block_number],), law="estimate", scale=math.sqrt(variance), variance=variance, rows=len(counts)
        )
        yield MeasuredMargin(law, np.round(counts).astype(np.int64), np.arange(len(counts)))
    for margin, part in design.parts(noisy):
        scale = design.image.scale(step, int(design.weights[design.margins.index(margin)]))
        law = MarginLaw(
            axes=tuple(axes[block] for block in margin),
            law="gaussian" if step.law == "gaussian" else "laplace",
            scale=math.sqrt(scale) if step.law == "gaussian" else float(scale),
            variance=design.variance(margin, step),
            rows=part.size,
            differences=design.differs(margin),
        )
        yield MeasuredMargin(law, part.ravel(), np.arange(part.size))


def pooled(
    design: ResidualDesign,
    margins: Sequence[MeasuredMargin],
    n_records: int | None,
    public: Table | None = None,
    shares: Mapping[tuple[int, ...], FloatArray] | None = None,
) -> NoisyPairs:
    """Return unbiased estimates of all pairs from measured margins, each weighted by its precision.

    What several margins say of the same pair beyond its columns, or of a column, is averaged in proportion to 1 /
    variance, for Laplace noise that of the continuous law, as in forecasts: generalised least squares, as residuals of
    a margin have independent errors (Xiao, He, Zhang and Kifer, 2023). Margins that weren't counted whole, or whose
    axes aren't blocks of ``design``, are left out. Counts of intervals aren't averaged with sums over pairs: under
    Laplace noise the average had errors up to twice as large (tried). What no margin says has infinite variance.
    """
    sizes, names = design.sizes, design.domain.names
    place = {tuple(names[c] for c in block.columns): (k, block.n_levels) for k, block in enumerate(design.blocks)}
    effects, given = dict[tuple[int, ...], FloatArray | float](), dict[tuple[int, ...], tuple[FloatArray, float]]()
    weights, squares = dict[tuple[int, ...], float](), dict[tuple[int, ...], float]()
    for each in margins:
        found = [place.get(axis.columns) for axis in each.law.axes]
        table, variance = each.whole(), max(each.law.variance, 1e-12)
        nominal = max(2 * each.law.scale**2 if each.law.law == "laplace" else variance, 1e-12)
        if table is None and each.law.axes and each.law.axes[0].size == 2 == 1 + len(found) and n_records is not None:
            own = float(each.noisy[0])  # of two levels one was counted, and the other follows
            table, variance, nominal = np.array([own, n_records - own]), 2 * variance, 2 * nominal
        if table is None or any(
            at is None or at[1] != axis.size or axis.first for at, axis in zip(found, each.law.axes, strict=True)
        ):
            continue
        blocks = [at[0] for at in found if at is not None]
        if each.law.law == "estimate" and blocks[0] in design.known:
            given[blocks[0],] = table, variance
        alone = (
            each.law.differences
            or each.law.law == "estimate"
            or len(each.noisy) < math.prod(sizes[[at[0] for at in found if at]])
        )
        for part in [tuple(blocks)] if alone else [p for m in range(3) for p in combinations(blocks, m)]:
            rest = tuple(k for k, block in enumerate(blocks) if block not in part)
            kept = np.asarray(table.sum(axis=rest)).transpose(np.argsort(part).tolist())
            effect = residual(kept) if each.law.differences else centred(kept)
            weight = 1 / (nominal * math.prod(int(sizes[blocks[k]]) for k in rest))
            part = tuple(sorted(part))
            effects[part] = effects.get(part, 0.0) + weight * effect
            weights[part] = weights.get(part, 0.0) + weight
            squares[part] = squares.get(part, 0.0) + weight * (variance / nominal)  # weight^2 by its own variance
    n = float(effects[()]) * (1 / weights[()]) if n_records is None else float(n_records)
    variances = {part: squares[part] / weight**2 for part, weight in weights.items() if part or n_records is None}
    given |= {part: (n * share, EXACT) for part, share in (shares or {}).items()}
    return _assembled(design, n, {p: effects[p] / weight for p, weight in weights.items()}, variances, given, public)


def _assembled(
    design: ResidualDesign,
    n: float,
    effects: Mapping[tuple[int, ...], FloatArray | float],
    variances: Mapping[tuple[int, ...], float],
    given: Mapping[tuple[int, ...], tuple[FloatArray, float]],
    public: Table | None,
) -> NoisyPairs:
    """Return the pairs of ``n`` records, of residuals and their variances; ``given`` tables are taken whole."""
    sizes, offsets = design.sizes, design.offsets
    counts, variance = np.zeros((offsets[-1], offsets[-1])), np.full((len(sizes), len(sizes)), np.inf)
    variance[(sizes == 1)[:, None] | (sizes == 1)] = 0.0
    variance[np.outer(design.public, design.public)] = 0.0
    if public is not None:
        counts += _public_counts(design, public)
    for block in range(len(sizes)):
        if (block,) in given:
            design.margin(counts, (block,))[:], variance[block, block] = given[block,]
        elif not design.public[block]:
            design.margin(counts, (block,))[:] = effects.get((block,), 0.0) + n / sizes[block]
    single = [design.margin(counts, (block,)).copy() for block in range(len(sizes))]
    for i, j in combinations(range(len(sizes)), 2):
        if not (design.public[i] and design.public[j]):
            both = effects.get((i, j), 0.0) + single[i][:, None] / sizes[j] + single[j] / sizes[i]
            both = given[i, j][0] if (i, j) in given else both - n / (sizes[i] * sizes[j])
            design.margin(counts, (i, j))[:] = both
            design.margin(counts, (j, i))[:] = both.T
    for part in {*variances, *given} - {()}:
        if not design.public[list(part)].all():
            each = given[part][1] if part in given else variances[part]
            variance[part[0], part[-1]] = variance[part[-1], part[0]] = each
    return NoisyPairs(offsets, counts, variance, n, variances.get((), 0.0))


def _public_counts(design: ResidualDesign, public: Table) -> FloatArray:
    codes = np.zeros((public.n_records, len(design.blocks)), dtype=np.int32)
    for k in np.flatnonzero(design.public):
        block = design.blocks[k]
        codes[:, k] = block.codes([public.codes[design.domain.names[column]] for column in block.columns])
    found = pair_counts(codes, np.ones(len(codes), dtype=np.int64), design.offsets)
    exact_pairs = np.repeat(np.repeat(np.outer(design.public, design.public), design.sizes, 0), design.sizes, 1)
    return np.where(exact_pairs, np.triu(found) + np.triu(found, 1).T, 0).astype(float)
