"""The table of maximum entropy that agrees with noisy pairs, without laying out cells:
Markov chains are its records.

A pairwise Markov random field has a parameter for each two levels. Its expectations
can't be added up over 10^30 cells, so they are taken over chains that are moved a
little after every change of the parameters (persistent contrastive divergence:
Tieleman, 2008). They start from the tree of the most telling pairs (Chow and Liu,
1968), which can be drawn from at once. Everything here is post-processing of noisy and
public numbers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.fields.sweeps import Floats32, Parameters, add_gains, sweep
from pdips.fields.targets import PairTarget
from pdips.margins.consistency import Codes, LevelGroups, levelled, rounded_counts
from pdips.margins.estimates import NoisyPairs
from pdips.margins.pair_tables import pair_counts

MOST_WORK = 2.5e10
"""Additions of the chains in a first fit: where a table needs more, fewer chains than
records are run.
"""
FEWEST_CHAINS = 2_000
LEAST_SWEEPS = 100
MOST_SWEEPS = 400
FINAL_SWEEPS = 20
SWEEPS_ON = 3  # From a chunk of a large set to the next one
SETTLED = 0.2
"""Part of the largest step in which a fit ends on the records of a set: from 1 down to
it in the first chunk, and so much from there on (``benchmarks.worth``).
"""
RATE = 0.35
LONGEST_STEP = 0.5
LONGEST_SLOPE = 0.25
STIFFEST = 1.0
LOOK_AGAIN = 10
STEPS = 15.0
"""Steps of parameters that many pairs move together are kept below a limit, worked out
anew every few sweeps. A fit has ``STEPS`` sweeps over the limit: smaller steps need
more of them.
"""

# Records that counts are taken to be larger by in a step, of levels and of cells
STEADY_LEVELS = 10
STEADY_CELLS = 5

# Largest parameter of the tree that chains start from, and slope within a level
STEEPEST = 6.0
# Parameters are averaged over the last sweeps of a fit, from this part of them on
AVERAGED = 0.7
EXACT = 1e-12
EVEN = 1e-3
ROUNDS = 5  # In which places within intervals are drawn given each other

RETRIES = 6
ASTRAY = 2.0
LEAST_OFF = 0.02
MOST_OFF = 0.1
"""A draw whose chains end farther off their levels than so many times those of the
first fit, and this on average or the last in one column, is fitted again around half
the draw of the prior, of that column's parameters or of all: strong ones that noise
hides can leave chains apart in two crowds.
"""

OF_TRIPLES = 0.25  # Variance of the prior of the parameters of three blocks


def _draw_block(
    law: FloatArray,
    given: IntArray | Codes,
    fixed: Codes,
    allowed: Mapping[int, BoolArray],
    rng: np.random.Generator,
) -> Codes:
    """Return a level of a block for each record, from the row of the law that its
    parent's level is given by, among those that are fixed.
    """
    codes = np.zeros(len(fixed), dtype=np.int32)
    for group, is_open in allowed.items():
        rows = np.flatnonzero(fixed == group)
        cumulative = np.cumsum(np.where(is_open, law, 0), axis=1)
        ends = cumulative[given[rows]]
        uniform = rng.random((len(rows), 1)) * ends[:, -1:]
        codes[rows] = (ends <= uniform).sum(axis=1)
    return codes


@dataclass(frozen=True, eq=False)
class PairField:
    """The parameters of a pairwise Markov random field, chains that follow its law, and
    where they have been.
    """

    theta: Floats32
    bias: Floats32
    codes: Codes
    fixed: Codes
    third: Floats32
    layout: IntArray
    passed: tuple[Codes, ...] = ()

    @classmethod
    def start(
        cls,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        rng: np.random.Generator,
        n_chains: int | None = None,
    ) -> "PairField":
        """Return the tree of the pairs that say most of each other, with chains drawn
        from it.
        """
        work = MOST_SWEEPS * len(noisy.sizes) * len(noisy.counts)
        bearable = min(round(noisy.n_records), int(MOST_WORK / work))
        fixed = groups.of(n_chains or max(FEWEST_CHAINS, bearable), rng)
        theta = np.zeros_like(noisy.counts, np.float32)
        codes = np.zeros(fixed.shape, dtype=np.int32)
        shares = target.levels / noisy.n
        for block, parent in target.tree(noisy):
            own = noisy.levels_of(block)
            law = shares[own][None]
            given = np.zeros(len(codes), dtype=np.int32)
            if parent is not None:
                above = noisy.levels_of(parent)
                joint = target.shrunk[above, own]
                law = joint / joint.sum(axis=1, keepdims=True)
                log_ratio = np.log(law / shares[own]).clip(-STEEPEST, STEEPEST)
                theta[above, own] = log_ratio
                theta[own, above] = log_ratio.T
                given = codes[:, parent]
            allowed = {
                group: groups.allowed(group)[own]
                for group in np.unique(fixed[:, block])
            }
            codes[:, block] = _draw_block(law, given, fixed[:, block], allowed, rng)
        n_third = sum(triple.beyond.size for triple in noisy.triples)
        return cls(
            theta=theta,
            bias=np.log(shares).astype(np.float32),
            codes=codes,
            fixed=fixed,
            third=np.zeros(n_third, dtype=np.float32),
            layout=noisy.layout,
        )

    def moved(
        self,
        noisy: NoisyPairs,
        groups: LevelGroups,
        sweeps: int,
        rng: np.random.Generator,
    ) -> None:
        """Move the chains, in place."""
        sizes = np.diff(noisy.offsets)
        for _ in range(sweeps):
            uniform = rng.random(self.codes.shape, dtype=np.float32)
            order = rng.permutation(self.codes.shape[1])
            levels = [np.arange(*noisy.offsets[i : i + 2]) for i in order]
            place = np.concatenate(levels)
            parameters = Parameters(
                theta=self.theta.take(place, axis=0).take(place, axis=1),
                bias=self.bias[place],
                third=self.third,
                layout=self.layout,
                offsets=np.concatenate([[0], np.cumsum(sizes[order])]),
                group=groups.group[place],
            )
            sweep(self.codes, self.fixed, parameters, uniform, order)

    def fitted(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        rng: np.random.Generator,
        around: tuple[FloatArray, FloatArray] | None = None,
    ) -> "PairField":
        """Return the field whose expected pairs come as near the target as the priors
        let them.

        ``around`` are the means of the priors, as :meth:`PairTarget.drawn` returns
        them. Left out, they are 0, and pairs that say no more than noise have no
        parameters.
        """
        fit = _Fit.begun(self, noisy, target, rng, around)
        field = fit.field
        parameters = (field.theta, field.bias, field.third)
        sums = [np.zeros_like(values) for values in parameters]
        passed = list[Codes]()
        sweeps = MOST_SWEEPS
        n_averaged = 0
        limit = 0.0
        for k in range(MOST_SWEEPS):
            field.moved(noisy, groups, 1, rng)
            counts = fit.expected()
            if k % LOOK_AGAIN == 0:
                limit = fit.limit(counts)
            if k == 0:
                sweeps = round(min(max(STEPS / limit, LEAST_SWEEPS), MOST_SWEEPS))
            fastest = min(RATE, limit)
            # steps fall from the middle of the fit on, so that chains settle
            rate = fastest * min(1.0, 2 - 2 * k / sweeps) + fastest / 20
            fit.move(counts, rate)
            if k >= AVERAGED * sweeps:
                for total, values in zip(sums, parameters, strict=True):
                    total += values
                n_averaged += 1
                left = sweeps - 1 - k
                # as many stages as it takes for each record to have its own chain
                stride = int((1 - AVERAGED) * sweeps / max(1, fit.scale))
                if left % max(1, stride) == 0:
                    passed.append(field.codes.copy())
            if k == sweeps - 1:
                break
        theta, bias, third = (total / np.float32(n_averaged) for total in sums)
        return replace(field, theta=theta, bias=bias, third=third, passed=tuple(passed))

    def settled(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        sweeps: int,
        first: float,
        rng: np.random.Generator,
    ) -> "PairField":
        """Return the field after some more sweeps of the fit, whose steps fall from
        ``first`` to ``SETTLED`` of the largest ones, with chains that are records.

        Where a set has many more records than the fit had chains, its pairs were as far
        from the target as those few chains leave parameters: the set was worth fewer
        records than it had. Its own chains know better.
        """
        fit = _Fit.begun(self, noisy, target, rng, None)
        largest = min(RATE, fit.limit(fit.expected()))
        for part in np.linspace(first, SETTLED, sweeps):
            fit.field.moved(noisy, groups, 1, rng)
            fit.move(fit.expected(), largest * part)
        return fit.field

    def off(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Return how far each block's levels are from the target's where chains move
        on, and by chance: (2, blocks).
        """
        moving = replace(self, codes=self.codes.copy())
        moving.moved(noisy, groups, FINAL_SWEEPS, rng)
        n_chains = len(self.codes)
        levels = (moving.codes + noisy.offsets[:-1]).ravel()
        counts = np.bincount(levels, minlength=noisy.offsets[-1])
        shares = target.levels / noisy.n
        away = np.abs(counts / n_chains - shares)
        # the mean absolute error of a share among independent chains
        chance = np.sqrt(2 / math.pi * shares * (1 - shares) / n_chains)
        return noisy.over(np.array([away, chance]), 1) / 2

    def triple_cells(self) -> IntArray:
        """Return the cell of each record in each triple, shape (records, triples)."""
        blocks = self.layout[:, 1:4]
        strides = self.layout[:, 4:]
        within = (self.codes[:, blocks] * strides).sum(axis=2)
        return np.asarray(within + self.layout[:, 0])

    def records(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        n: int,
        rng: np.random.Generator,
        *,
        kept: bool = False,
    ) -> Codes:
        """Return the levels of new records, shape (n, blocks): chains that have moved
        on since the fit.

        For households, and beside public columns, whose values must stay with their
        records, chains start from the tree and run twice as long. Where margins are to
        be ``kept``, but not beside public columns, the counts of all levels are those
        of the target, rounded, and the fit goes on where records are more than its
        chains. Otherwise chains are drawn, as the fit has driven all of them to the
        target.
        """
        fixed = groups.of(n, rng)
        if len(groups.rows) > 1:
            begun = PairField.start(noisy, target, groups, rng, n)
            chains = replace(self, codes=begun.codes, fixed=begun.fixed)
            chains.moved(noisy, groups, 2 * FINAL_SWEEPS, rng)
        else:
            codes = np.concatenate(self.passed)
            if kept:
                every = np.resize(np.arange(len(codes)), n)
                rows = rng.permutation(every)
            else:
                rows = rng.integers(0, len(codes), n)
            chains = replace(self, codes=codes[rows], fixed=fixed)
            if kept and n > len(self.codes):
                chains = chains.settled(noisy, target, groups, FINAL_SWEEPS, 1.0, rng)
            else:
                chains.moved(noisy, groups, FINAL_SWEEPS, rng)
        if kept:
            chains._meet(noisy, groups, rng)
        return chains.codes

    def chunks(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        sizes: Sequence[int],
        rng: np.random.Generator,
    ) -> Iterator[Codes]:
        """Yield the levels of new records chunk by chunk, the largest first; each keeps
        the counts of all levels, rounded.

        From one chunk to the next the same chains move on, by fewer sweeps than from
        the fit, which goes on where all records are more than its chains: each record
        has the law of a chain, and depends a little on those of its chain in other
        chunks. Beside public columns, and for households, chunks have chains of their
        own.
        """
        if len(groups.rows) > 1:
            for n in sizes:
                yield self.records(noisy, target, groups, n, rng, kept=True)
            return
        passed = np.concatenate(self.passed)
        every = np.resize(np.arange(len(passed)), sizes[0])
        chains = replace(
            self,
            codes=passed[rng.permutation(every)],
            fixed=groups.of(sizes[0], rng),
        )
        is_settling = sum(sizes) > len(self.codes)
        sweeps = FINAL_SWEEPS
        first = 1.0
        for n in sizes:
            if is_settling:
                chains = chains.settled(noisy, target, groups, sweeps, first, rng)
            else:
                chains.moved(noisy, groups, sweeps, rng)
            sweeps = SWEEPS_ON
            first = SETTLED
            chunk = replace(
                chains, codes=chains.codes[:n].copy(), fixed=chains.fixed[:n]
            )
            chunk._meet(noisy, groups, rng)
            yield chunk.codes

    def _meet(
        self, noisy: NoisyPairs, groups: LevelGroups, rng: np.random.Generator
    ) -> None:
        """Exchange levels, in place, until their counts are the target's, rounded."""
        for block, group in groups.kept(self.fixed):
            self._meet_levels(noisy, groups, block, group, rng)

    def _meet_levels(
        self,
        noisy: NoisyPairs,
        groups: LevelGroups,
        block: int,
        group: int,
        rng: np.random.Generator,
    ) -> None:
        """Exchange levels of a block, in place, until their counts are the target's,
        rounded.
        """
        rows = np.flatnonzero(self.fixed[:, block] == group)
        held, shares = groups.levels(block, group)

        def gain(some: IntArray, level: int) -> FloatArray:
            codes = self.codes[rows[some]]
            return self.gain(codes, block, held[level], noisy.offsets)

        own = np.searchsorted(held, self.codes[rows, block])
        wanted = rounded_counts(shares, len(rows))
        levels = levelled(own, wanted, gain, rng)
        self.codes[rows, block] = held[levels]

    def gain(
        self, codes: Codes, block: int, level: int | IntArray, offsets: IntArray
    ) -> FloatArray:
        """Return by how much the log density of each record rises with another level of
        a block.
        """
        new = np.broadcast_to(offsets[block] + level, len(codes)).astype(np.int64)
        rise: FloatArray = np.zeros(len(codes))
        own: Floats32 = np.ascontiguousarray(
            self.theta[:, offsets[block] : offsets[block + 1]]
        )
        add_gains(rise, codes, block, new - offsets[block], offsets, own)
        old = offsets[block] + codes[:, block]
        rise += self.bias[new].astype(np.float64) - self.bias[old]
        if not len(self.layout):
            return rise
        cells = replace(self, codes=codes).triple_cells()
        triples, axes = np.nonzero(self.layout[:, 1:4] == block)
        for triple, axis in zip(triples, axes, strict=True):
            place = cells[:, triple]
            step = (level - codes[:, block]) * self.layout[triple, 4 + axis]
            rise += self.third[place + step] - self.third[place]
        return rise

    def places(
        self,
        codes: Codes,
        blocks: Sequence[int],
        noisy: NoisyPairs,
        rng: np.random.Generator,
    ) -> dict[int, FloatArray]:
        """Return where each record lies within its level of some ordered blocks, from 0
        to 1.

        The log density is taken to be linear from the middle of a level to that of the
        next one. A place is drawn given the levels of all columns and the places in the
        other blocks, in several rounds. Normal scores in place of even ones were worse
        on real tables, whose tails depend on each other less than normal ones (tried).
        """
        places = {block: np.full(len(codes), 0.5) for block in blocks}
        nearby = {block: _Nearby.of(self, codes, block, noisy) for block in blocks}
        for _ in range(ROUNDS):
            for block in blocks:
                own = nearby[block]
                slope = own.rise.copy()
                for other in blocks:
                    if other != block:
                        bent = own.bent(nearby[other], self.theta)
                        slope += (places[other] - 0.5) * bent
                places[block] = _draw_place(slope, rng)
        return places


@dataclass(frozen=True, eq=False)
class _Nearby:
    """Of each record the levels above and below its own in an ordered block, numbered
    among all, how far they are apart, and the slope of the log density between them.
    """

    above: IntArray
    below: IntArray
    width: IntArray
    rise: FloatArray

    @classmethod
    def of(
        cls, field: PairField, codes: Codes, block: int, noisy: NoisyPairs
    ) -> "_Nearby":
        own = codes[:, block].astype(np.int64)
        last = noisy.ordered[block] - 1
        above = np.clip(own + 1, 0, last)
        below = np.clip(own - 1, 0, last)
        width = np.maximum(above - below, 1)
        high = field.gain(codes, block, above, noisy.offsets)
        low = field.gain(codes, block, below, noisy.offsets)
        rise = high - low
        # levels have their own shapes: only what other columns add is a slope
        mean = np.bincount(own, rise) / np.maximum(np.bincount(own), 1)
        rise = (rise - mean[own]) / width
        first = noisy.offsets[block]
        return cls(first + above, first + below, width, rise)

    def bent(self, other: "_Nearby", theta: Floats32) -> FloatArray:
        """Return by how much the slope rises with the place in another block."""
        high = theta[self.above, other.above] - theta[self.above, other.below]
        low = theta[self.below, other.below] - theta[self.below, other.above]
        return np.asarray((high + low) / (self.width * other.width))


def _draw_place(slope: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return places between 0 and 1 of log densities that are linear, by their
    inverse distribution function.
    """
    is_even = np.abs(slope) < EVEN
    slope = np.where(is_even, EVEN, np.clip(slope, -STEEPEST, STEEPEST))
    mass = rng.random(len(slope)) * np.expm1(slope)
    return np.log1p(mass) / slope


@dataclass(eq=False)
class _Ridge:
    """Parameters that are moved towards counts, and drawn to the centre of their prior
    the more the louder the noise is: ``penalty`` is its variance over the prior's.
    """

    values: NDArray[Any]
    centre: FloatArray | float
    penalty: FloatArray
    is_free: BoolArray | bool
    longest: float

    def move(
        self, rest: FloatArray, weight: FloatArray, held: FloatArray, rate: float
    ) -> None:
        """Take a step, in place, along what is left of the counts.

        ``held`` counts stand behind the parameters, and ``weight`` is by how much a
        step of 1 would change them.
        """
        ridge = self.penalty / held
        left = rest - ridge * (self.values - self.centre)
        change = rate * left / (weight + ridge)
        step = np.clip(change, -self.longest, self.longest)
        moved = np.where(self.is_free, step, 0)
        self.values += moved.astype(self.values.dtype)


@dataclass(eq=False)
class _Fit:
    """A field on its way to its target; its parameters are moved in place.

    ``scale`` is the number of records for each chain, ``slope_moves`` the records that
    slopes move, ``least`` the counts below which penalties grow no further, and
    ``triples`` the wanted counts of all cells of triples.
    """

    field: PairField
    noisy: NoisyPairs
    target: PairTarget
    scale: float
    cells: _Ridge
    slopes: _Ridge
    third: _Ridge
    slope_moves: FloatArray
    least: FloatArray
    triples: FloatArray

    @classmethod
    def begun(
        cls,
        field: PairField,
        noisy: NoisyPairs,
        target: PairTarget,
        rng: np.random.Generator,
        around: tuple[FloatArray, FloatArray] | None,
    ) -> "_Fit":
        """Return a fit from where a field is now, around the means of the priors."""
        field = replace(
            field,
            theta=field.theta.copy(),
            bias=field.bias.copy(),
            codes=field.codes.copy(),
            third=field.third.copy(),
        )
        scores = target.scores
        variance, slope_variance = target.likely if around is None else target.wide
        centre, slope_centre = (0.0, 0.0) if around is None else around
        levels = target.levels
        wanted = [each.counts(levels, target.pairs, noisy) for each in noisy.triples]
        has_slope = slope_variance > 0
        slopes = np.where(has_slope, scores.fitting(field.theta), 0)
        noise = noisy.spread(noisy.noise)
        slope_noise = scores.spread(noisy.noise)
        scale = noisy.n / len(field.codes)
        independent = np.outer(levels, levels) / noisy.n
        third = _third(field, noisy, rng, is_around=around is not None)
        cell_parameters = _Ridge(
            values=field.theta - scores.parameters(slopes),
            centre=centre,
            penalty=noise / np.maximum(variance, EXACT),
            is_free=variance > 0,
            longest=LONGEST_STEP,
        )
        slope_parameters = _Ridge(
            values=slopes,
            centre=slope_centre,
            penalty=slope_noise / np.maximum(slope_variance, EXACT),
            is_free=has_slope,
            longest=LONGEST_SLOPE,
        )
        slope_moves = noisy.n * np.outer(scores.length, scores.lengths)
        return cls(
            field=field,
            noisy=noisy,
            target=target,
            scale=scale,
            cells=cell_parameters,
            slopes=slope_parameters,
            third=third,
            slope_moves=slope_moves,
            least=independent / 5 + scale,
            triples=_joined(wanted),
        )

    def expected(self) -> FloatArray:
        """Return the counts of all two levels among the chains, in records."""
        n_chains = pair_counts(self.field.codes, None, self.noisy.offsets)
        counts = n_chains * self.scale
        return np.triu(counts) + np.triu(counts, 1).T

    def limit(self, counts: FloatArray) -> float:
        """Return the largest rate at which pairs that parameters move together stay."""
        return STIFFEST / self.target.stiffness(counts, self.noisy.n) ** 2

    def move(self, counts: FloatArray, rate: float) -> None:
        """Take a step of all parameters towards the target from what is expected."""
        target = self.target
        steady = STEADY_CELLS * self.scale
        levels = np.diagonal(counts)
        off = target.levels - levels
        pull = RATE * off / (levels + STEADY_LEVELS * self.scale)
        step = np.clip(pull, -LONGEST_STEP, LONGEST_STEP)
        self.field.bias[:] += step.astype(np.float32)
        # what levels that are off make of pairs is no matter of the pairs
        of_levels = np.outer(off, levels) / self.noisy.n
        rest = target.pairs - counts - of_levels - of_levels.T
        weight = np.maximum(counts, target.pairs) + steady
        self.cells.move(rest, weight, np.maximum(counts, self.least), rate)
        moves = self.slope_moves
        along = target.scores.along(rest)
        self.slopes.move(along, moves + steady, np.maximum(moves, EXACT), rate)
        slopes = target.scores.parameters(self.slopes.values)
        self.field.theta[:] = self.cells.values + slopes
        if len(self.triples):
            self._move_third(steady, rate)

    def _move_third(self, steady: float, rate: float) -> None:
        cells = self.field.triple_cells().ravel()
        counts = np.bincount(cells, minlength=len(self.triples)) * self.scale
        weight = np.maximum(counts, self.triples) + steady
        held = np.maximum(counts, steady)
        self.third.move(self.triples - counts, weight, held, rate)


def _third(
    field: PairField, noisy: NoisyPairs, rng: np.random.Generator, *, is_around: bool
) -> _Ridge:
    """Return the parameters of three blocks, around 0 or a draw of their prior."""
    centre: FloatArray | float = 0.0
    if is_around:
        centre = math.sqrt(OF_TRIPLES) * rng.standard_normal(len(field.third))
    penalties = [
        np.full(triple.beyond.size, triple.variance / OF_TRIPLES)
        for triple in noisy.triples
    ]
    return _Ridge(
        values=field.third,
        centre=centre,
        penalty=_joined(penalties),
        is_free=True,
        longest=LONGEST_STEP,
    )


def _joined(parts: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate([np.zeros(0), *(part.ravel() for part in parts)])


def redrawn(
    field: PairField,
    noisy: NoisyPairs,
    target: PairTarget,
    moved: Mapping[int, tuple[FloatArray, float]],
    n_records: int,
    rng: np.random.Generator,
    first: FloatArray,
) -> tuple[PairField, LevelGroups, FloatArray]:
    """Return a field fitted to margins with fresh noise around a draw of the prior, its
    groups, and how far off it is.

    ``first`` is how far off the first field is, as :meth:`PairField.off` says.
    """
    again = noisy.again(rng, moved)
    centre, slope_centre = target.drawn(rng)
    other = target.moved(again)
    groups = other.groups.drawn(n_records, rng, even=False)
    begun = field
    if len(groups.kinds) > 1:
        begun = replace(field, fixed=groups.of(len(field.codes), rng))
    part = np.ones_like(noisy.variance)
    bearable = max(LEAST_OFF, ASTRAY * first[0].mean())
    for _ in range(RETRIES + 1):
        centre = centre * noisy.spread(part)
        slope_centre = slope_centre * target.scores.spread(part)
        other = other.narrower(again, part)
        fitted = begun.fitted(again, other, groups, rng, (centre, slope_centre))
        off = fitted.off(again, other, groups, rng)
        away, chance = off
        astray = away > np.maximum(MOST_OFF, ASTRAY * first[0]) + chance
        if not astray.any() and away.mean() <= bearable:
            break
        # of the columns that are astray, or of all where none is alone
        halved = np.logical_or.outer(astray, astray) | ~astray.any()
        part = np.where(halved, 0.5, 1.0)
    return fitted, groups, off
