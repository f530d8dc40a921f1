"""What tables 4 and 5 of paper 003 measure: a classifier on records held out, moments, distances of tables."""

from itertools import combinations

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips_papers.modips.fertility_data import CONFUSION, LEVELS, MOMENTS, NUMBERS, RATE, TVD, features

BALANCED, AMONG_ALTERED, AMONG_NORMAL = "balanced, %", "altered called so, %", "normal called altered, %"
ONE_CLASS = "sets of one class, %"
COST = 1.0
"""C of the support vector machines, as in e1071 by default: its cross-validation reports a rate and chooses nothing."""


def classify(train: Table, test: Table) -> FloatArray:
    """Fit a linear support vector machine on one table and return its labels, 1 or -1, for the records of another."""
    from sklearn.svm import SVC

    (x, y), (new, _) = features(train), features(test)
    if len(np.unique(y)) < 2:
        return np.full(len(new), y[0])
    return np.asarray(SVC(kernel="linear", C=COST).fit(x, y).predict(new), dtype=np.float64)


def confusion(predicted: FloatArray, test: Table) -> dict[str, float]:
    """Return the confusion matrix per 20 records, the consistency rate and rates by class, in %."""
    _, y = features(test)
    counts = [float(((y == seen) & (predicted == said)).sum()) for seen in (1, -1) for said in (1, -1)]
    found = {name: 20 * count / len(y) for name, count in zip(CONFUSION, counts, strict=True)}
    altered, normal = counts[0] / (counts[0] + counts[1]), counts[2] / (counts[2] + counts[3])
    return found | {
        RATE: 100 * (counts[0] + counts[3]) / len(y),
        BALANCED: 50 * (1 + altered - normal),
        AMONG_ALTERED: 100 * altered,
        AMONG_NORMAL: 100 * normal,
    }


def moments(made: Table) -> dict[str, float]:
    """Return mean and standard deviation of age and hours."""
    found = []
    for name in NUMBERS:
        values = made.frame[name].to_numpy(dtype=np.float64)
        found += [float(values.mean()), float(values.std(ddof=1))]
    return dict(zip(MOMENTS, found, strict=True))


def distances(original: Table, made: Table) -> dict[str, float]:
    """Return the paper's total variation distances: mean over all k-way tables of sum |share - share|, from 0 to 2."""
    sizes = [len(levels) for levels in LEVELS.values()]
    codes = [np.column_stack([table.codes[name] for name in LEVELS]) for table in (original, made)]
    found = {}
    for k, label in TVD.items():
        apart = []
        for chosen in combinations(range(len(sizes)), k):
            widths = [sizes[j] for j in chosen]
            shares = [
                np.bincount(
                    np.ravel_multi_index(tuple(each[:, list(chosen)].T), widths), minlength=int(np.prod(widths))
                )
                / len(each)
                for each in codes
            ]
            apart.append(np.abs(shares[0] - shares[1]).sum())
        found[label] = float(np.mean(apart))
    return found


def measure(train: Table, test: Table, made: Table) -> dict[str, float]:
    """Return everything that is measured of one synthetic set."""
    one_class = 100.0 * (len(np.unique(features(made)[1])) < 2)
    found = confusion(classify(made, test), test) | moments(made) | distances(train, made)
    return found | {ONE_CLASS: one_class}
