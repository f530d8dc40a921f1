"""Section 5 of paper 003: a table of 100 records and ten columns, synthesized and classified; tables 4 and 5."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.data.table import Table
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task, summarise
from pdips_papers.modips import fertility_measures as measures
from pdips_papers.modips.fertility_data import (
    CONFUSION,
    MOMENTS,
    RATE,
    TVD,
    features,
    paper_figures,
    read_fertility,
    split,
)
from pdips_papers.modips.fertility_forms import (
    EVEN,
    FORMS,
    HALF,
    LAPLACE_PUBLISHED,
    MAJORITY,
    ORIGINAL,
    PRINTED_SVM,
    PUBLISHED,
    RESAMPLE,
    SOUND_SVM,
    SVMS,
    even,
    modips_row,
    resample,
)
from pdips_papers.modips.private_svm import predict, printed, sound
from pdips_papers.modips.words import text_of

EPSILONS = (repr(math.e),)
PAPER_ROWS = {
    PRINTED_SVM: "PrivateSVM",
    LAPLACE_PUBLISHED: "Laplace sanitizer",
    modips_row(PUBLISHED, HALF): "MODIPS",
}
"""The rows that do what the paper does, as far as it says."""

REFERENCES = (ORIGINAL, MAJORITY, RESAMPLE, EVEN)


class Fertility:
    """``pdips study fertility``."""

    name: ClassVar[str] = "fertility"
    title: ClassVar[str] = "Fertility diagnoses: a classifier on synthetic data, section 5 of paper 003"
    default_replicates: ClassVar[int] = 100
    data: ClassVar[Data] = "required"
    needs: ClassVar[str] = (
        ", a .csv or .parquet file with the columns of the UCI data set Fertility: season, age, childish_diseases, "
        "accident_or_trauma, surgical_intervention, high_fevers, alcohol, smoking, hours_sitting, diagnosis"
    )

    def tasks(self, options: Options) -> list[Task]:
        """One split of the table a task, with a set of every form. Reads the table, to refuse a wrong one."""
        path = str(options.data)
        read_fertility(path)
        arguments = {"data": path, "epsilons": list(options.epsilons or EPSILONS)}
        return [Task(key=f"replicate={number:04}", arguments=arguments) for number in range(options.replicates)]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Split the table, synthesize four fifths in every way, classify the rest."""
        rng = np.random.default_rng(seed)
        train, test = split(read_fertility(arguments["data"]), rng)
        found = _references(train, test, rng)
        for epsilon in arguments["epsilons"]:
            for form, make in FORMS.items():
                made = Table(make(train, epsilon, rng), train.schema)
                found[row_name(epsilon, form)] = measures.measure(train, test, made)
            for form in SVMS:
                found[row_name(epsilon, form)] = _private_svm(form, train, test, epsilon, rng)
        return [
            {"row": row, "column": column, "value": value}
            for row, mine in found.items()
            for column, value in mine.items()
        ]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return means over replicates, the paper's figures beside the rows at epsilon = e."""
        rows = set(measurements["row"])
        paper = {ORIGINAL: "original"} | {row_name(EPSILONS[0], form): method for form, method in PAPER_ROWS.items()}
        figures: dict[tuple[str, str], float] = {}
        for row, method in paper.items():
            if row in rows:
                figures |= paper_figures(row, method)
        return summarise(measurements, figures)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Print tables 4 and 5, and rates by class."""
        rows = {row: row for row in table["row"].unique()}
        five = {row: row for row in rows if not any(form in row for form in (*SVMS, MAJORITY))}
        rates = (RATE, measures.BALANCED, measures.AMONG_ALTERED, measures.AMONG_NORMAL)
        return [
            Block(
                title="Table 4: confusion matrix, observed as predicted, of 20 records held out; + is an altered "
                "diagnosis. "
                "CR: share classified right",
                rows=rows,
                columns={name: name for name in (*CONFUSION, RATE)},
            ),
            Block(
                title="By class: a classifier that doesn't tell them apart has 50 % balanced",
                rows=rows,
                columns={name: name for name in rates},
            ),
            Block(
                title="Table 5: means and standard deviations",
                rows=five,
                columns={name: name for name in MOMENTS},
                headline=False,
            ),
            Block(
                title="Table 5: sum over cells of |share - share|, mean over all tables of k categorical columns; "
                "from 0 to 2",
                rows=five,
                columns={name: name for name in TVD.values()},
            ),
        ]

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw tables 4 and 5."""
        from pdips_papers.modips.fertility_pictures import pictures

        return pictures(measurements, table)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the claims of section 5 against the table."""
        from pdips_papers.modips.fertility_findings import findings

        return findings(table)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def row_name(epsilon: str, form: str) -> str:
    """Return what a row is called in the table."""
    return f"epsilon = {float(exact(epsilon, 'epsilon')):.3g}: {form}"


def _references(train: Table, test: Table, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Measure what isn't private, or looks at nothing."""
    majority = np.full(test.n_records, np.where(features(train)[1].mean() > 0, 1.0, -1.0))
    return {
        ORIGINAL: measures.confusion(measures.classify(train, test), test) | measures.moments(train),
        MAJORITY: measures.confusion(majority, test),
        RESAMPLE: measures.measure(train, test, Table(resample(train, rng), train.schema)),
        EVEN: measures.measure(train, test, Table(even(train, rng), train.schema)),
    }


def _private_svm(form: str, train: Table, test: Table, epsilon: str, rng: np.random.Generator) -> dict[str, float]:
    """Release a classifier in one of its forms and measure it."""
    x, y = features(train)
    if form == PRINTED_SVM:
        weights = printed(x, y, epsilon, RandomBits(rng))
    else:
        cost = f"1/{train.n_records}" if form == SOUND_SVM else 1
        weights = sound(x, y, cost, epsilon, RandomBits(rng))
    return measures.confusion(predict(weights, features(test)[0]), test)
