"""What a card answers questions from: noisy pairs and named analyses, as its script
takes them.
"""

import base64
import keyword
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from pdips.arrays import FloatArray
from pdips.data.column import Column
from pdips.errors import InputError
from pdips.margins.estimates import NoisyPairs
from pdips.outside.answer import Answer
from pdips.outside.answer_tables import UNFIT
from pdips.outside.asking import named_analysis
from pdips.outside.cells import LevelCells
from pdips.outside.noisy_margins import NoisyMargins
from pdips.outside.questions import is_number
from pdips.release.documents import PrivacyDocument
from pdips.release.opening import PublishedRelease

MOST_COUNTS = 40_000  # On a page of less than 1 MB: 11 letters each
LEVEL = 0.95


def card_data(public: Path, release: PrivacyDocument) -> dict[str, Any] | None:
    """Return what a card answers questions from, as JSON takes it; None where a public
    folder has neither noisy counts nor an analysis that was asked by name.

    Examples
    --------
    >>> schema = Schema.model_validate({"columns": {"ill": {"levels": ["no", "yes"]}}})
    >>> table = Table(pd.DataFrame({"ill": ["no", "yes"] * 50}), schema)
    >>> Margins(epsilon=1).release(table)[0].publish("told/public")
    >>> home = Path("told/public")
    >>> data = card_data(home, PrivacyDocument.read(home))
    >>> data["n"], data["columns"][0]["levels"]
    (100.0, ['no', 'yes'])
    """
    opened = PublishedRelease(home=public, privacy=release, signed_by=None)
    data: dict[str, Any] = {"columns": [], "analyses": [], "left": 0}
    data["reach"] = float(ndtri((1 + LEVEL) / 2))
    # the sets answer in Python, where noisy counts can't be read
    with suppress(*UNFIT):
        data |= _of_margins(NoisyMargins.read(public), release)
    for each in [opened, *_analyses(opened)]:
        with suppress(*UNFIT):
            asked = named_analysis(each)
            if asked is not None:
                data["analyses"].append(_of_analysis(*asked))
    return data if data["columns"] or data["analyses"] else None


def _analyses(opened: PublishedRelease) -> list[PublishedRelease]:
    """Return the analyses that were named before a release and are in its folder."""
    with suppress(*UNFIT):
        return [*opened.analyses.values()]
    return []


def _of_margins(margins: NoisyMargins, release: PrivacyDocument) -> dict[str, Any]:
    pairs = margins.found
    kept, n_left = _pairs(pairs)
    parts = [np.diagonal(pairs.counts)]
    for first, last in kept:
        own = pairs.counts[pairs.levels_of(first), pairs.levels_of(last)]
        parts.append(own.ravel())
    variances = np.diagonal(pairs.variance)
    return {
        "n": pairs.n,
        "n_variance": pairs.total_variance,
        "blocks": [int(size) for size in pairs.sizes],
        "variances": [float(own) if isfinite(own) else None for own in variances],
        "pairs": [[*pair, float(pairs.variance[pair])] for pair in kept],
        "left": n_left,
        "counts": _encoded(np.concatenate(parts)),
        "columns": [*_columns(margins, release)],
    }


def _pairs(pairs: NoisyPairs) -> tuple[list[tuple[int, int]], int]:
    """Return the pairs of blocks that were measured, the smallest first as long as a
    page holds them, and how many it doesn't hold.
    """
    sizes = pairs.sizes
    measured = [
        pair
        for pair in combinations(range(len(sizes)), 2)
        if isfinite(pairs.variance[pair])
    ]
    by_size = sorted(measured, key=lambda pair: int(sizes[pair[0]] * sizes[pair[1]]))
    n_counts = np.cumsum([sizes[first] * sizes[last] for first, last in by_size])
    kept = by_size[: int(np.searchsorted(n_counts, MOST_COUNTS, "right"))]
    return kept, len(measured) - len(kept)


def _columns(
    margins: NoisyMargins, release: PrivacyDocument
) -> Iterator[dict[str, Any]]:
    """Yield the columns of the schema that noisy counts hold by levels or bins."""
    of_products = () if margins.moments is None else margins.moments.design.names
    for name, published in release.table_schema.columns.items():
        if name in margins.estimated or name not in margins.design.home:
            continue
        column = margins.schema.columns[name]
        block, place = margins.design.home[name]
        numbers = None
        gaps = list[list[float]]()
        # products answer for a mean that pairs don't hold
        if is_number(column) and name not in of_products:
            cells = LevelCells(margins.schema, (), (name,))
            middle = np.asarray(cells.values()[name].numbers)
            numbers = [None if np.isnan(one) else one for one in middle]
            if column.is_binned and not column.is_categorical:
                gaps = [*_gaps(cells, name, middle)]
        spelt = None
        if column.is_categorical and is_number(column):
            spelt = [repr(level) for level in column.levels or ()]
        yield {
            "name": name,
            "word": name.isidentifier() and not keyword.iskeyword(name),
            "label": published.label or "",
            "unit": published.unit or "",
            "levels": column.names(),
            "shown": column.shown(),
            "spelt": spelt,
            "numbers": numbers,
            "gaps": gaps,
            "within": _within(column) if numbers else None,
            "lacks": bool(column.missing) and is_number(column),
            "binned": not column.is_categorical,
            "block": block,
            "at": margins.design.blocks[block].levels[:, place].tolist(),
        }


def _gaps(cells: LevelCells, name: str, middle: FloatArray) -> Iterator[list[float]]:
    """Yield how far the first number of each bin is from its middle, and how far the
    last; 0 of what is missing.
    """
    for place in ("first", "last"):
        at_end = np.asarray(cells.values(place)[name].numbers)
        yield np.nan_to_num(at_end - middle).tolist()


def _within(column: Column) -> list[float]:
    """Return the ends between which the mean of a column is."""
    ends = column.levels or (column.lower, column.upper)
    numbers = [float(end) for end in ends if end is not None]
    return [min(numbers), max(numbers)]


def _of_analysis(text: str, family: str, answer: Answer) -> dict[str, Any]:
    rows = answer.summary(LEVEL)
    numbers = rows[["estimate", "lower", "upper"]].to_numpy().tolist()
    return {
        "text": text,
        "family": family,
        "remarks": [*answer.remarks],
        "rows": [[name, *own] for name, own in zip(answer.names, numbers, strict=True)],
    }


def _encoded(numbers: FloatArray) -> str:
    """Return numbers as text that holds all their digits."""
    return base64.b64encode(numbers.astype("<f8").tobytes()).decode()


def decoded(text: str) -> FloatArray:
    """Return the numbers of such a text.

    Raises
    ------
    InputError
        If it is none.
    """
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8")
    except ValueError:
        raise InputError("the counts of a card can't be read") from None
