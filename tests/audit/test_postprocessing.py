"""With the same answers, neighbouring tables in any order of their rows are asked the
same questions and publish the same bytes: for every mechanism. What reads the table
once more is found out.

Pairs are random, with fixed seeds.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from leaks import as_long_as_the_table, leaking, with_sets
from margin_tables import of_pairs
from tables import refuses, schema_of

from benchmarks.path_classes import NUMBERS, PUBLIC, path_classes
from pdips import LaplaceSanitizer, Margins, Schema, Table
from pdips.audit import certify_postprocessing, registered_cases
from pdips.audit.cases.margins import FOUR, HOMES
from pdips.audit.postprocessing import digests, frame_digest
from pdips.audit.random_pairs import random_pair, shuffled
from pdips.margins.intervals import IntervalColumn

EPSILON = 8  # Sets follow the answers, which are few records
SEED = 3
SLOW = {"scores", "modips"}  # One relation and kind each: chains and compilation
CLASSES = [
    pytest.param(each, relation, id=f"{each}-{relation}")
    for each in path_classes()
    for relation in each.relations
    if each.mechanism not in SLOW
    or (
        "delta" in each.settings
        # a count follows from others where the number of records is public
        and relation == ("replace-one" if each.label == "a coin" else "add-remove")
    )
]


@pytest.mark.slow_cases(
    *(each.id for each in CLASSES if each.values[0].mechanism in SLOW)
)
@pytest.mark.parametrize(("path_class", "relation"), CLASSES)
def test_the_same_answers_give_the_same_questions_and_the_same_bytes(
    path_class, relation
):
    rng = np.random.default_rng(SEED)
    schema = path_class.schema(path_class.caps[-1], rng)
    made = path_class.build(relation, EPSILON)
    found = certify_postprocessing(made, random_pair(schema, relation, rng))
    assert found.holds, found
    assert found.refusal == ""
    assert found.n_questions >= 1
    assert found.n_outputs >= 8


def test_parameters_within_drawn_cells_are_the_same_whoever_drew_the_cell_first():
    # the first run draws the cell by its bits, later ones are given it
    cases = registered_cases("censored-posterior", n_sets=1, neighbours="replace-one")
    [case] = [each for each in cases if each.mechanism.model.name == "mean"]
    assert certify_postprocessing(case.mechanism, case.pair).holds


def pairs_of(schema, relation, n=4):
    return [
        random_pair(schema, relation, np.random.default_rng(number))
        for number in range(n)
    ]


def certified(made, pairs):
    return [certify_postprocessing(made, pair) for pair in pairs]


def test_the_number_of_records_in_the_length_of_sets_is_seen(monkeypatch):
    made = of_pairs(epsilon=8, neighbours="add-remove")
    pairs = pairs_of(FOUR, "add-remove")
    assert all(found.holds for found in certified(made, pairs))
    leaking(monkeypatch, Margins, as_long_as_the_table)
    found = certified(made, pairs)
    assert any("synthetic_1.parquet" in each.outputs for each in found)


def test_what_is_kept_and_published_of_the_table_itself_is_seen(monkeypatch):
    made = of_pairs(epsilon=8, neighbours="add-remove")
    pairs = pairs_of(FOUR, "add-remove")
    ask = Margins.ask

    def keeping_the_number_of_records(self, plan, curator):
        measured = ask(self, plan, curator)
        curator.keep(lambda: np.array([curator._table.n_records]))
        return measured

    monkeypatch.setattr(Margins, "ask", keeping_the_number_of_records)
    found = certified(made, pairs)
    assert any("answers.parquet" in each.outputs for each in found)


def test_published_cuts_of_exact_quantiles_are_seen(monkeypatch):
    made = of_pairs(epsilon=8, delta="1e-6")
    pairs = pairs_of(NUMBERS.draw(np.random.default_rng(1), 1), "replace-one")
    assert all(found.holds for found in certified(made, pairs))

    def with_quantiles(drawn, table):
        exact = table.sort_key("x")
        cuts = drawn.tables["cuts"].assign(lower=np.nan_to_num(exact).mean())
        return replace(drawn, tables={**drawn.tables, "cuts": cuts})

    leaking(monkeypatch, Margins, with_quantiles)
    found = certified(made, pairs)
    assert any("cuts.parquet" in each.outputs for each in found)


def test_intervals_looked_into_by_exact_counts_are_seen(monkeypatch):
    made = of_pairs(epsilon=8, delta="1e-6")
    pairs = pairs_of(NUMBERS.draw(np.random.default_rng(1), 1), "replace-one")
    measure = IntervalColumn.measure

    def by_exact_counts(self, curator, steps, ask=None):
        decide = curator.decide
        layers = iter(range(len(steps)))
        curator.decide = lambda noisy, rule: decide(
            noisy, lambda _: self.counts(curator._table, next(layers)) > 0
        )
        try:
            return measure(self, curator, steps, ask)
        finally:
            curator.decide = decide

    monkeypatch.setattr(IntervalColumn, "measure", by_exact_counts)
    found = certified(made, pairs)
    assert any("mask" in " ".join(each.questions) for each in found)


def test_the_order_of_public_rows_is_seen(monkeypatch):
    made = Margins(epsilon=8)
    pairs = pairs_of(PUBLIC.draw(np.random.default_rng(0), 1), "replace-one")
    assert all(found.holds for found in certified(made, pairs))
    sorted_part = Table.public_part

    def in_order_of_the_file(self):
        part = sorted_part(self)
        held = [name for name in self.schema.public_columns if name in self.frame]
        part.frame = self.frame[held].reset_index(drop=True)
        part.codes = {name: self.codes[name] for name in held if name in self.codes}
        return part

    monkeypatch.setattr(Table, "public_part", in_order_of_the_file)
    assert not all(found.holds for found in certified(made, pairs))


@pytest.mark.parametrize(
    "change",
    [
        lambda frame, table: frame.astype({"a": "object"}),
        lambda frame, table: frame.set_index(frame.index + 1),
        lambda frame, table: frame.iloc[::-1].reset_index(drop=True),
        lambda frame, table: frame[list(frame)[::-1]],
    ],
)
def test_types_indices_and_orders_are_compared(change, monkeypatch):
    pair = random_pair(schema_of(3, 3), "add-remove", np.random.default_rng(2))
    n_first = pair.first.n_records

    def changed(drawn, table):
        if table.n_records == n_first:
            return drawn
        return with_sets(drawn, lambda made: change(made, table))

    made = LaplaceSanitizer(epsilon=8, neighbours="add-remove")
    assert certify_postprocessing(made, pair).holds
    leaking(monkeypatch, LaplaceSanitizer, changed)
    assert not certify_postprocessing(made, pair).holds


def test_digests_tell_statistics_and_noise_apart():
    table = Table(pd.DataFrame({"a": [0, 1, 1], "b": [0, 1, 2]}), schema_of(3, 3))
    release, _ = LaplaceSanitizer(epsilon=1).release(
        table, rng=np.random.default_rng(0)
    )
    [name] = release.statistics
    other = {name: release.statistics[name] + 1}
    before = digests(release)
    assert before == digests(release)
    changed = digests(replace(release, statistics=other))
    assert {key for key in before if before[key] != changed[key]} == {
        f"statistics {name}"
    }
    louder = [replace(each, scale=9.0) for each in release.noise]
    changed = digests(replace(release, noise=tuple(louder)))
    assert "noise" in {key for key in before if before[key] != changed[key]}
    assert frame_digest(pd.DataFrame({"a": [1]})) != frame_digest(
        pd.DataFrame({"a": [1.0]})
    )


def test_random_neighbours_move_together_and_keep_to_the_schema():
    rules = Schema.model_validate(
        {
            "columns": {name: {"levels": [0, 1, 2]} for name in "ab"},
            "records": {"max_per_person": 3, "person": "person"},
            "impossible": [{"a": [0], "b": [0, 1]}],
        }
    )
    n_together = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        for relation in ("replace-one", "add-remove"):
            pair = random_pair(rules, relation, rng, far=seed % 2 == 0)
            assert 1 <= pair.first.n_records - pair.second.n_records <= 3 or (
                relation == "replace-one"
            )
            n_together += pair.name == "random: 3 records, alike"
            other = shuffled(pair.first, rng)
            assert sorted(map(tuple, other.frame.to_numpy())) == sorted(
                map(tuple, pair.first.frame.to_numpy())
            )
    assert n_together > 40


def test_rows_of_households_are_not_shuffled():
    pair = random_pair(HOMES, "replace-one", np.random.default_rng(0))
    refuses("aren't shuffled", shuffled, pair.first, np.random.default_rng(0))


def test_rules_that_bar_everything_are_refused():
    barred = Schema.model_validate(
        {
            "columns": {name: {"levels": [0, 1]} for name in "ab"},
            "impossible": [{"a": [0, 1], "b": [0, 1]}],
        }
    )
    refuses(
        "no random record", random_pair, barred, "replace-one", np.random.default_rng()
    )


def test_a_certificate_is_for_mechanisms_with_a_plan():
    pair = random_pair(FOUR, "replace-one", np.random.default_rng(0))
    refuses("have a plan", certify_postprocessing, object(), pair)
