"""Sentences of the statement and the card, held against what ran: none may stand where
a run contradicts it.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from small_models import normal
from small_models import ready as find
from tables import filled

from pdips import InputError, Release, Schema, Table
from pdips.convergence import ROUNDS
from pdips.privacy.loss import also_read
from pdips.registry import MECHANISMS
from pdips.report.pages import write_card

pytestmark = [
    pytest.mark.usefixtures("few_simulated"),
    pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning"),
]

LEVELS = {"a": {"levels": ["x", "y"]}, "b": {"levels": [0, 1, 2]}}
NUMBER = {"v": {"lower": 0, "upper": 8, "bins": 2}}
SCHEMAS = {
    "levels": {"columns": LEVELS},
    "one column": {"columns": NUMBER, "records": {"person": "id", "max_per_person": 2}},
    "public": {
        "columns": {**LEVELS, **NUMBER, "p": {"levels": [0, 1], "public": True}}
    },
}
N = 60


def table_of(schema: Schema) -> Table:
    frame = filled(schema, N, np.random.default_rng(7))
    return Table(
        frame.assign(id=np.arange(N) // 2) if schema.records.person else frame, schema
    )


def settings_of(mechanism: Any) -> list[dict[str, Any]]:
    """Return settings that change what a mechanism does, as far as it offers them."""
    fields = mechanism.__dataclass_fields__
    found: list[dict[str, Any]] = [{}]
    if mechanism.most_sets > 1:
        found += (
            [{"n_sets": 2, "split": split} for split in mechanism.splits]
            if "split" in fields
            else [{"n_sets": 2}]
        )
    if "add-remove" in mechanism.offers.relations:
        found.append(
            {
                "neighbours": "add-remove",
                **({"n_records": 30} if "n_records" in fields else {}),
            }
        )
    special: dict[str, list[dict[str, Any]]] = {
        "margins": [{"measure": "pairs"}, {"delta": "1e-6"}],
        "steps": [{"layers": 1}, {"order": ("a",)}, {"elect": "layer"}],
        "kng": [{"scheme": scheme} for scheme in ("stepwise", "plain")],
        "modips": [{"delta": "1e-6"}],
        "censored-posterior": [
            {"delta": "1e-6"},
            {"centre": "zero"},
            {"delta": "1e-6", "centre": "zero"},
        ],
        "scores": [{"delta": "1e-6"}],
    }
    return found + special.get(mechanism.name, [])


SLOW = ("censored-posterior", "modips", "scores")
"""Models are compiled for each schema, so these run on fewer of them."""

CASES = [
    pytest.param(
        name,
        settings,
        kind,
        id=f"{name}-{'-'.join(map(str, settings.values())) or 'default'}-{kind}",
    )
    for name in sorted(MECHANISMS)
    for settings in settings_of(find(name))
    for kind in SCHEMAS
    if name != "pseudo-posterior"  # a sentence that it has no guarantee
    and not (settings and kind == "one column")
    and (name not in SLOW or (kind == "levels" and "split" not in settings))
]

Fact = Callable[[Release], bool]
HOLDS_IF: dict[str, Fact] = {
    r"elected by the exponential "
    r"mechanism": lambda made: any("election" in spend.step for spend in made.spends),
    r"given from public knowledge": lambda made: made.settings.get("order") is not None,
    r"tree of columns": lambda made: made.mechanism in ("steps", "universal-histogram"),
    r"\bdiscrete Laplace "
    r"noise": lambda made: noised(made) and made.settings.get("delta") is None,
    r"discrete Gaussian "
    r"noise": lambda made: noised(made) and made.settings.get("delta"),
    r"levels, and whether a number is missing, from "
    r"counts": lambda made: has_levels(made),
    r"K-norm gradient mechanism chose": lambda made: not has_levels(made, only=True),
    r"zero-concentrated (?!price)": lambda made: made.loss.kind == "zcdp",
    r"zero-concentrated price": lambda made: made.loss.kind == "pure",
    r"The same release also "
    r"satisfies": lambda made: also_read(made.loss.rho) < made.loss.epsilon,
    r"[Pp]rivate reference "
    r"(are|best)": lambda made: made.settings.get("centre") == "staged",
    r"sums of columns": lambda made: made.mechanism == "modips" and has_numbers(made),
    r"ASSUMPTION THAT NOTHING CERTIFIES": lambda made: made.loss.sampling == "mcmc",
    r"the number of records is "
    r"protected": lambda made: made.loss.neighbours == "add-remove",
    r"Public columns, their values "
    r"copied": lambda made: bool(made.schema.public_columns),
    r"All 2 sets share one "
    r"draw": lambda made: made.n_sets == 2 and made.settings.get("split") == "once",
    r"one for each set": lambda made: (
        made.settings.get("split") == "per-set" and made.n_sets > 1
    ),
    r"synthetic sets:": lambda made: made.n_sets > 1,
    r"SEED": lambda made: made.reproducible,
}
"""Sentences, by words of theirs, and what has to be true of a release that says
them.
"""


def noised(made: Release) -> bool:
    return bool(made.noise) or made.mechanism in ("modips", "kng", "kng-residual")


def has_numbers(made: Release) -> bool:
    binned = all(
        column.is_categorical or column.is_binned
        for column in made.schema.columns.values()
    )
    return not has_levels(made, only=True) and not binned


def has_levels(made: Release, *, only: bool = False) -> bool:
    kinds = [
        column.is_categorical
        for column in made.schema.columns.values()
        if not column.public
    ]
    return all(kinds) if only else any(kinds)


def contradicted(made: Release) -> list[str]:
    """Return the sentences of a release's statement that what ran contradicts."""
    return [
        words
        for words, holds in HOLDS_IF.items()
        if re.search(words, made.loss.statement) and not holds(made)
    ]


@pytest.mark.slow_cases(
    "censored-posterior-1e-6-levels",
    "censored-posterior-add-remove-30-levels",
    "censored-posterior-default-levels",
    "scores-2-levels",
    "scores-add-remove-30-levels",
    "scores-default-levels",
)
@pytest.mark.parametrize(("name", "settings", "kind"), CASES)
def test_no_sentence_is_contradicted_by_what_ran(name, settings, kind, tmp_path):
    schema = Schema.model_validate(SCHEMAS[kind])
    mechanism = find(name)(epsilon=4, **settings)
    try:
        mechanism.spends(schema)
    except ValueError:  # not offered for this schema, which other tests are about
        assert kind != "levels" or settings
        return
    made, _ = mechanism.release(table_of(schema), rng=np.random.default_rng(3))
    assert contradicted(made) == []
    public_size = (
        made.loss.neighbours == "replace-one" and made.settings.get("n_records") is None
    )
    assert not public_size or {len(each) for each in made.sets} == {N}
    made.publish(tmp_path / "out", allow=["seeded"])
    card = " ".join(
        re.sub(
            r"<[^>]+>", " ", write_card(tmp_path / "out").read_text(encoding="utf-8")
        ).split()
    )
    assert ("but the public columns, which were copied" in card) == bool(
        schema.public_columns
    )
    assert ("from exactly the law of the proof" in card) == (
        made.loss.sampling == "exact"
    )
    assert ("checked against a key of persons" in card) == (
        schema.records.person is not None
    )


def test_a_sentence_that_a_run_contradicts_is_found():
    # the broken twin: a statement of one release over another
    schema = Schema.model_validate(SCHEMAS["levels"])
    one, _ = find("margins")(epsilon=4).release(
        table_of(schema), rng=np.random.default_rng(3)
    )
    other = find("steps")(epsilon=4, layers=1, neighbours="add-remove").privacy_loss(
        schema
    )
    object.__setattr__(one.loss, "statement", other.statement)
    assert contradicted(one) == [
        r"elected by the exponential "
        r"mechanism",
        r"tree of columns",
        r"the number of records is protected",
    ]


@pytest.mark.slow
def test_every_sentence_is_said_by_some_release_or_more():
    said = set()
    for name in sorted(MECHANISMS):
        for settings in settings_of(find(name)):
            for kind in [SCHEMAS["levels"]] if name in SLOW else SCHEMAS.values():
                with suppress(InputError):  # some settings are not for some schemas
                    loss = find(name)(epsilon=4, **settings).privacy_loss(
                        Schema.model_validate(kind)
                    )
                    said |= {
                        words for words in HOLDS_IF if re.search(words, loss.statement)
                    }
    said.add("SEED")
    wide = Schema(columns={"y": {"lower": -10, "upper": 10}})
    text = (
        find("censored-posterior")(epsilon=4, model=normal, sampler="nuts")
        .privacy_loss(wide)
        .statement
    )
    said |= {words for words in HOLDS_IF if re.search(words, text)}
    # in modips alone, of columns without bins
    assert set(HOLDS_IF) - said == {r"sums of columns"}


def test_sentences_name_the_statistics_of_modips_and_the_rounds_of_chains():
    loose = Schema(columns={**LEVELS, "v": {"lower": 0, "upper": 8}})
    mechanism = find("modips")(epsilon=1)
    assert ("(counts by cell, sums of columns counted from") in mechanism.privacy_loss(
        loose
    ).statement
    assert (
        "(counts by cell)"
        in mechanism.privacy_loss(Schema.model_validate(SCHEMAS["levels"])).statement
    )
    wide = Schema(columns={"y": {"lower": -10, "upper": 10}})
    loss = find("censored-posterior")(
        epsilon=1, model=normal, sampler="nuts"
    ).privacy_loss(wide)
    assert f"they are run up to {ROUNDS} times" in loss.statement
    assert "nothing is released if they don't" not in loss.statement
