"""Whether a public folder says one thing: its tables are worked out again from the
answers, and what it offers from the settings.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from pdips.data.readers import read_frame
from pdips.data.table import Table
from pdips.errors import InputError, PlanError
from pdips.mechanism import AnswerTables, Mechanism
from pdips.outside.replays import ANSWERS, mechanism_of
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import PublishedAnswers
from pdips.registry import MECHANISMS, find
from pdips.release import VERSION
from pdips.release.answers import read_answers
from pdips.release.documents import PrivacyDocument
from pdips.release.folder import read_tables
from pdips.release.integrity import MAIN_SUFFIXES, Remark
from pdips.release.noisy_margins import stacked
from pdips.release.offers import SetsShare

MARGINS = "margins"
FIRST_SET = "synthetic_1"

UNFIT = (
    InputError,
    PlanError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
)
"""What asking ends in along answers, or with settings, that were made up."""


def examine_answers(home: Path, document: PrivacyDocument) -> list[Remark]:
    """Return what a public folder says twice, and not alike.

    Noisy numbers stand in ``answers.parquet``, and again in tables for readers without
    ``pdips``. Both are signed, so whoever signed them can let them differ. Compared are
    releases of this version; those of a model have their ``offers`` compared alone,
    since their answers can't be asked for again without it.
    """
    is_ours = document.software.get("pdips") == VERSION
    is_variant = "variant" in document.settings
    if not is_ours or is_variant or document.mechanism not in MECHANISMS:
        return []
    if "model" in find(document.mechanism).__dataclass_fields__:
        return [*_offers(home, document, document.offers.sets_share)]
    try:
        mechanism = mechanism_of(document)
        remarks = [*_offers(home, document, mechanism.sets_share())]
        if document.answers:
            tables = _tables_of_answers(home, document, mechanism)
            remarks += _differing(home, document, tables)
    except UNFIT:
        path = _file_of(home, document, ANSWERS)
        said = "holds answers that settings and schema in privacy.json don't ask for"
        return [Remark(path=path, said=said)]
    return remarks


def _offers(
    home: Path, document: PrivacyDocument, sets_share: SetsShare
) -> Iterator[Remark]:
    """Yield a remark if the release states other offers than its mechanism makes."""
    offers = find(document.mechanism).offers
    if document.offers != replace(offers, sets_share=sets_share):
        said = (
            f"offers what {document.mechanism} with its settings doesn't, or leaves "
            f"out what it does"
        )
        yield Remark(path=home / PrivacyDocument.file, said=said)


def _tables_of_answers(
    home: Path, document: PrivacyDocument, mechanism: Mechanism
) -> AnswerTables:
    """Return the tables that follow from the published answers."""
    _, frames = read_tables(home, ANSWERS)
    answers = read_answers(document.answers, frames[ANSWERS])
    schema = document.table_schema
    plan = mechanism.plan(schema)
    public = PublicFacts(document.n_records)
    if document.n_records is None:
        # not all sets: others may have been added beside those of the release
        first = read_frame(_file_of(home, document, FIRST_SET), separator=",")
        first_set = Table(first, schema.without_person())
        public = PublicFacts.of(first_set, n_public=plan.n_public)
    measured = mechanism.ask(plan, PublishedAnswers(plan, public, answers))
    return mechanism.tables_of(plan, measured)


def _differing(
    home: Path, document: PrivacyDocument, tables: AnswerTables
) -> Iterator[Remark]:
    """Yield a remark for each table that says other numbers than the answers."""
    expected = dict(tables.tables)
    if document.margins:
        expected[MARGINS] = stacked(tables.margins)
        laws = [margin.law for margin in tables.margins]
        if [*document.margins] != laws:
            said = "states other margins, or other noise on them, than its answers have"
            yield Remark(path=home / PrivacyDocument.file, said=said)
    _, published = read_tables(home, *expected)
    for name, frame in expected.items():
        if name not in published or not _are_equal(published[name], frame):
            said = "has other numbers than the answers that it is made of"
            yield Remark(path=_file_of(home, document, name), said=said)


def _file_of(home: Path, document: PrivacyDocument, table: str) -> Path:
    """Return the file of a table, in the format that it has."""
    names = [f"{table}.{suffix}" for suffix in MAIN_SUFFIXES]
    held = [name for name in names if name in (document.digests or ())]
    return home / (held or names)[0]


def _are_equal(published: pd.DataFrame, expected: pd.DataFrame) -> bool:
    """Whether two tables hold the same, but for the last digits of text."""
    same_shape = published.shape == expected.shape
    if not same_shape or list(published.columns) != list(expected.columns):
        return False
    return all(
        _are_equal_cells(published[name].to_numpy(), expected[name].to_numpy())
        for name in expected.columns
    )


def _are_equal_cells(published: np.ndarray, expected: np.ndarray) -> bool:
    kinds = {published.dtype.kind, expected.dtype.kind}
    if kinds <= {*"iufb"}:
        return bool(np.allclose(published, expected, rtol=1e-9, equal_nan=True))
    return [str(each) for each in published] == [str(each) for each in expected]
