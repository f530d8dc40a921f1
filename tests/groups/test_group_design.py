"""Which columns may be outcomes and groups, and how records are added up."""

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips import Schema, Table
from pdips.groups.design import MOST_GROUPS, GroupDesign

ILL = {"levels": ["no", "yes"]}
SITE = {"levels": ["a", "b", "c"]}
PAY = {"lower": 0, "upper": 10}
CODES = {"lower": 10, "upper": 13, "integer": True}


def design_of(columns, **settings):
    return GroupDesign.of(Schema(columns=columns), **settings)


def test_a_number_that_is_not_whole_or_two_levels_are_the_outcome():
    assert design_of({"ill": ILL, "pay": PAY}).outcome == "pay"
    assert design_of({"site": SITE, "ill": ILL}).outcome == "ill"
    assert design_of({"site": SITE, "pay": PAY}).family == "normal"
    visits = CODES | {"lower": 0}
    found = design_of({"site": SITE, "n": visits}, outcome="n", family="poisson")
    assert found.groups == ("site",)


@pytest.mark.parametrize(
    ("columns", "settings", "said"),
    [
        ({"site": SITE}, {}, "no outcome"),
        ({"ill": ILL}, {}, "one group alone"),
        ({"ill": ILL, "site": {"levels": ["a"]}}, {}, "one group alone"),
        ({"ill": ILL, "pay": PAY}, {"outcome": "ill"}, "whole numbers"),
        ({"ill": ILL | {"public": True}, "site": SITE}, {"outcome": "ill"}, "public"),
        ({"ill": ILL | {"missing": True}, "site": SITE}, {"outcome": "ill"}, "missing"),
        ({"ill": ILL, "code": CODES | {"missing": True}}, {}, "missing"),
        ({"ill": ILL, "site": SITE}, {"outcome": "other"}, "no column"),
        ({"pay": PAY, "site": SITE}, {"family": "bernoulli"}, "two levels"),
        ({"ill": ILL, "site": SITE}, {"family": "normal"}, "is a number"),
        ({"pay": PAY, "site": SITE}, {"family": "poisson"}, "whole number from 0"),
        ({"pay": PAY, "site": SITE}, {"family": "gamma"}, "must be one of"),
        (
            {"ill": ILL, "code": CODES | {"upper": MOST_GROUPS + 10}},
            {},
            "narrow the range",
        ),
        ({"ill": ILL, "site": SITE, "b": SITE}, {"groups": ("site",)}, "nothing of b"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(columns, settings, said):
    refuses(said, design_of, columns, **settings)


def test_records_are_added_up_by_group_and_by_end():
    schema = Schema(columns={"pay": PAY, "code": CODES, "site": SITE})
    design = GroupDesign.of(schema, "pay")
    assert design.n_groups == 12
    frame = pd.DataFrame(
        {"pay": [0.0, 10, 5, 10], "code": [10, 13, 13, 13], "site": [*"accc"]}
    )
    ends = design.ends_by_group(Table(frame, schema)).reshape(2, -1) / design.steps
    assert ends[:, 0].tolist() == [1, 0]
    # the last group has three records, of which one is half way
    assert ends[:, 11].tolist() == [0.5, 2.5]
    assert ends.sum() == 4
    assert design.squares(Table(frame, schema))[0] / design.steps == 3


def test_labels_are_those_of_the_schema():
    schema = Schema(columns={"ill": ILL, "site": SITE, "code": CODES})
    design = GroupDesign.of(schema)
    labels = design.labels()
    assert labels["site"].tolist()[::4] == ["a", "b", "c"]
    assert labels["code"].tolist()[:4] == [10, 11, 12, 13]
    group = np.array([5, 0, 11])
    assert design.group_of(design.columns_of(group)).tolist() == group.tolist()


def test_a_range_of_a_million_codes_is_no_list_of_levels():
    code = {"lower": 0, "upper": 999_999, "integer": True}
    design = design_of({"ill": ILL, "code": code})
    assert design.n_groups == 1_000_000
    assert design.labels(np.array([999_999]))["code"].tolist() == [999_999]
