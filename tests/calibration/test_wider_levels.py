"""What wider levels would buy, against plans with and without them."""

import pytest

from pdips import Margins, Schema
from pdips.calibration.closed_form import prospects
from pdips.calibration.wider_levels import WiderLevels

LEVELS = {"sex": ["f", "m"], "ill": ["no", "yes"], "site": [*"abcdefgh"]}


def schema_of(levels: dict[str, list[str]], **others: object) -> Schema:
    columns = {name: {"levels": each} for name, each in levels.items()}
    return Schema(columns=columns, **others)


def errors_of(mechanism: Margins, schema: Schema) -> dict[tuple[str, ...], float]:
    rows = prospects(mechanism.plan(schema), 1_000)
    return {row.columns: row.standard_error for row in rows if row.kind == "margin"}


@pytest.mark.parametrize("delta", [None, "1e-6"])
def test_wider_levels_are_told_by_the_plan_that_has_them(delta):
    mechanism = Margins(epsilon=1, delta=delta)
    schema = schema_of(LEVELS)
    rows = prospects(mechanism.plan(schema), 1_000)
    wider = WiderLevels.of(mechanism, schema, rows)
    assert (wider.column, wider.n_levels, wider.n_merged) == ("site", 8, 4)
    before = errors_of(mechanism, schema)
    after = errors_of(mechanism, schema_of({**LEVELS, "site": [*"abcd"]}))
    of_site = sorted(
        after[names] / before[names] / 2**0.5 for names in before if "site" in names
    )
    others = sorted(
        after[names] / before[names] for names in before if "site" not in names
    )
    assert wider.merged == pytest.approx(of_site[1])
    assert wider.others == pytest.approx(others[1])
    assert wider.others < 1


def test_nothing_is_told_where_levels_can_t_be_merged():
    few = schema_of({"sex": ["f", "m"], "ill": ["no", "yes"]})
    spoken_of = schema_of(LEVELS, impossible=[{"sex": ["m"], "site": ["a"]}])
    public = schema_of(LEVELS)
    site = public.columns["site"].model_copy(update={"public": True})
    public = public.model_copy(update={"columns": {**public.columns, "site": site}})
    for schema in (few, spoken_of, public):
        mechanism = Margins(epsilon=1)
        rows = prospects(mechanism.plan(schema), None)
        assert WiderLevels.of(mechanism, schema, rows) is None
