"""What every mechanism owes its users: settings checked, prices that add up, releases
that say what they are.
"""

import dataclasses
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pandas as pd
import pytest
from small_models import ready as find
from small_models import with_model
from tables import RELATIONS, cases, random_table, refuses, scales_of, schema_of

from pdips import InputError, Ledger, RefusedError
from pdips.errors import ResumableError
from pdips.privacy.charge import Charge
from pdips.registry import MECHANISMS, published, variant_class, variants_of

SCHEMA = schema_of(2, 3, 2)
ALL = sorted(MECHANISMS)


pytestmark = [
    pytest.mark.usefixtures("few_simulated"),
    pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning"),
]  # tables here have 5 to 50 records

VIEWS = {"pdips.audit.cases.posterior"}
"""Modules with what audits see of a registered mechanism."""


PRINTED = pytest.mark.parametrize(
    "name", [name for name in ALL if "published" in variants_of(name)]
)
"""Over the mechanisms that a paper prints otherwise, whether the form is a setting or a
class of its own.
"""


def printed(name: str, **settings):
    """Return a mechanism as printed."""
    form, variant = variant_class(name, "published")
    return (find(name) if variant else with_model(form))(
        epsilon=1, **variant, **settings
    )


NOISY_SIZE = pytest.mark.parametrize(
    "mechanism",
    [
        find(n)
        for n in ALL
        if "add-remove" in find(n).offers.relations
        and "n_records" not in find(n).__dataclass_fields__
    ],
    ids=lambda made: made.name,
)


@pytest.fixture(params=ALL)
def mechanism(request):
    found = find(request.param)
    assert found.name == request.param
    return found


@pytest.fixture(params=[name for name in ALL if "sound" in find(name).variants])
def sound(request):
    """A mechanism that gives a guarantee."""
    return find(request.param)


def test_the_list_is_complete():
    import pkgutil

    import pdips

    homes = {
        home.partition(":")[0] for home in MECHANISMS.values() if isinstance(home, str)
    }
    modules = [*pkgutil.walk_packages(pdips.__path__, "pdips.")]
    assert {"pdips.histogram.laplace", "pdips.posterior.censored_posterior"} <= {
        each.name for each in modules
    }
    modules = [each for each in modules if not each.name.endswith("__main__")]
    for module in modules:
        classes = [
            name
            for name, value in vars(__import__(module.name, fromlist=["x"])).items()
            if hasattr(value, "privacy_loss")
            and isinstance(getattr(value, "name", None), str)
            if getattr(value, "__module__", "") == module.name
        ]
        assert not classes or module.name in homes or module.name in VIEWS


NO_NUMBERS = {
    "epsilon": [0, -1, float("inf"), float("nan"), "a lot", True, "-0.0"],
    "n_sets": [0, -3, 1.5, True],
}
NO_NUMBERS = [
    (name, value, "must be") for name, values in NO_NUMBERS.items() for value in values
]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *NO_NUMBERS,
        ("epsilon", "1e7", "must be at most"),
        ("n_sets", 10**6, "must be at most"),
    ],
)
def test_epsilon_and_n_sets_have_a_range(mechanism, name, value, said):
    refuses(f"{name} {said}", mechanism, **{"epsilon": 1, name: value})


def test_words_must_be_known_and_offered(mechanism):
    fields = {field.name for field in dataclasses.fields(mechanism)}
    words = {
        "neighbours": mechanism.offers.relations,
        "split": mechanism.splits,
        "variant": mechanism.variants,
    }
    for setting, offered in words.items():
        assert setting in fields or len(offered) == 1
        expected = f"{setting} must be" if setting in fields else setting
        for value in {"near", *(RELATIONS if setting == "neighbours" else ())} - {
            *offered
        }:
            with pytest.raises((InputError, TypeError), match=expected):
                mechanism(epsilon=1, **{setting: value})
    assert mechanism(epsilon=1).neighbours == mechanism.offers.relations[0]


@PRINTED
def test_what_is_printed_needs_a_public_number_of_records_and_no_ledger_takes_it(
    name, ledger
):
    refuses("replace-one", printed, name, neighbours="add-remove")
    said = "none" if "sound" in find(name).variants else "asymptotic"
    refuses(said, printed(name).release, random_table(SCHEMA, 5), ledger=ledger)


@cache
def seeded(name):
    """A release of thirty records from a seed, and its record; a test that changes
    neither may share it.
    """
    mechanism = find(name)
    made = mechanism(epsilon=1, n_sets=min(3, mechanism.most_sets))
    return made.release(random_table(SCHEMA, 30), rng=np.random.default_rng(1))


def test_a_release_holds_what_it_should(mechanism):
    release, record = seeded(mechanism.name)
    assert len(release.sets) == min(3, mechanism.most_sets)
    assert release.reproducible
    assert release.loss.statement.startswith("MADE FROM A SEED")
    assert release.settings["epsilon"] == 1
    assert all(
        list(frame.columns) == ["a", "b", "c"] and len(frame) == 30
        for frame in release.sets
    )
    assert record.seconds
    assert record.peak_memory > 0
    assert "30" not in repr(release) + repr(record)


@pytest.mark.slow_cases(
    "scores",
)
def test_a_seed_repeats_a_release(mechanism):
    first, table = seeded(mechanism.name)[0].sets[0], random_table(SCHEMA, 30)
    made = mechanism(epsilon=1, n_sets=min(3, mechanism.most_sets))
    second, other = (
        made.release(table, rng=np.random.default_rng(seed))[0].sets[0]
        for seed in (1, 2)
    )
    pd.testing.assert_frame_equal(first, second)
    assert not first.equals(other)


class BrokenError(Exception):
    """The run comes to its end."""


def test_noise_that_cant_be_drawn_isnt_charged(sound, ledger, monkeypatch):
    def no_bits(rng):
        raise BrokenError

    monkeypatch.setattr("pdips.mechanism.RandomBits", no_bits)
    with pytest.raises(BrokenError):
        sound(epsilon="1/3").release(random_table(SCHEMA, 5), ledger=ledger)
    assert not ledger.path.exists()


def test_the_ledger_is_charged_before_any_answer_is_seen(sound, ledger, monkeypatch):
    answer = Charge.answer

    def seen(charge, *given):
        answer(charge, *given)
        raise BrokenError

    monkeypatch.setattr(Charge, "answer", seen)
    with pytest.raises(ResumableError):
        sound(epsilon="1/3").release(random_table(SCHEMA, 5), ledger=ledger)
    assert ledger.summary().spent_epsilon == Fraction(1, 3)
    # the broken twin hands an answer over that isn't committed
    monkeypatch.setattr(Charge, "_commit", lambda *_: None)
    other = Ledger(ledger.path.with_name("other.sqlite"))
    with pytest.raises(BrokenError):
        sound(epsilon="1/3").release(random_table(SCHEMA, 5), ledger=other)
    assert not other.path.exists()


@pytest.mark.slow_cases(
    "scores",
)
def test_the_ledger_refuses_to_overspend(sound, ledger):
    table = random_table(SCHEMA, 5)
    ledger.set_total(1)
    release, _ = sound(epsilon="0.6").release(table, ledger=ledger)
    # without a seed, random bits come from the operating system
    assert not release.reproducible
    [entry] = ledger.entries()
    assert release.receipt == entry.receipt(ledger.name())
    assert release.describe()["receipt"]["number"] == 1
    refuses(
        "",
        lambda: sound(epsilon="0.6").release(table, ledger=ledger),
        error=RefusedError,
    )
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize(
    "name", [each for each in ALL if {"sound", "published"} <= {*variants_of(each)}]
)
# kind asymptotic may be, on request
def test_published_is_never_published(name, tmp_path):
    release, _ = printed(name).release(
        random_table(SCHEMA, 20), rng=np.random.default_rng(0)
    )
    assert release.loss.kind == "none"
    assert "NO GUARANTEE" in release.loss.statement
    allow = ["seeded", "asymptotic", "none"]
    refuses(
        "never published",
        release.publish,
        tmp_path / "out",
        allow=allow,
        error=RefusedError,
    )
    assert not (tmp_path / "out").exists()


def test_a_seeded_release_is_published_only_by_name_and_into_a_folder_of_its_own(
    sound, tmp_path
):
    release, _ = seeded(sound.name)
    for allow in ([], ["asymptotic"], ["reproducible"]):
        with pytest.raises(RefusedError, match=r"made from a seed.*allow=\['seeded'\]"):
            release.publish(tmp_path / "out", allow=allow)
    assert not (tmp_path / "out").exists()
    release.publish(tmp_path / "out", allow=["seeded"])
    assert (tmp_path / "out" / "synthetic_1.parquet").exists()
    refuses("would mix", release.publish, tmp_path / "out", allow=["seeded"])


@pytest.mark.parametrize("mechanism", [find("laplace-sanitizer"), find("margins")])
def test_nothing_is_charged_for_what_cannot_be_done(mechanism, ledger):
    table = random_table(SCHEMA, 5)
    for neighbours, epsilon in zip(
        mechanism.offers.relations, ("1e-17", "1e-14"), strict=False
    ):
        made = mechanism(epsilon=epsilon, neighbours=neighbours)
        refuses("epsilon is too small", made.release, table, ledger=ledger)
    assert not ledger.path.exists()


@pytest.mark.slow_cases(
    "scores",
)
def test_a_great_epsilon_still_gives_all_records(mechanism):
    for epsilon in (1440, 100_000):
        release, _ = mechanism(epsilon=epsilon).release(
            random_table(SCHEMA, 50), rng=np.random.default_rng(0)
        )
        assert len(release.sets[0]) == 50


def test_published_steps_of_one_column_states_its_loss():
    assert ("The true loss is up to 2.") in published("steps")(epsilon=1).privacy_loss(
        schema_of(3)
    ).statement


@pytest.mark.parametrize("mechanism", [find("laplace-sanitizer"), find("margins")])
def test_a_release_says_how_much_noise_it_has(mechanism):
    release, _ = seeded(mechanism.name)
    scales = scales_of(mechanism(epsilon=1), SCHEMA)
    # one noisy table serves all sets unless the budget is split
    assert len(release.statistics) == 1
    assert [item.scale for item in release.noise] == [float(scale) for scale in scales]
    assert release.noise[-1].statistics == (
        "the margin of a, b, c" if mechanism.name == "margins" else "each cell"
    )
    described = release.describe()["noise"][-1]
    assert described["standard_deviation"] == pytest.approx(
        math.sqrt(2) * described["scale"], rel=0.02
    )
    split = mechanism(epsilon=1, n_sets=4, split="per-set")
    assert (
        len(
            split.release(random_table(SCHEMA, 30), rng=np.random.default_rng(0))[
                0
            ].statistics
        )
        == 4
    )


@NOISY_SIZE
def test_under_add_remove_the_number_of_records_is_not_kept_and_may_be_none(mechanism):
    table = random_table(schema_of(2, 2), 200)
    sizes = {
        len(mechanism(epsilon="0.2", neighbours="add-remove").release(table)[0].sets[0])
        for _ in range(12)
    }
    assert len(sizes) > 1
    table = random_table(schema_of(2), 1)
    sizes = [
        len(
            mechanism(epsilon="0.01", neighbours="add-remove")
            .release(table, rng=np.random.default_rng(s))[0]
            .sets[0]
        )
        for s in range(8)
    ]
    assert 0 in sizes


@pytest.mark.parametrize(
    ("settings", "message"), cases(__file__, "steps_checks_its_own_settings")
)
def test_steps_checks_its_own_settings(settings, message):
    refuses(message, lambda: find("steps")(epsilon=1, **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 4}, "more than the 3 columns"),
        ({"order": ("z",)}, "'z' is no column"),
    ],
)
def test_steps_checks_its_settings_against_the_schema(settings, message, ledger):
    refuses(
        message,
        lambda: find("steps")(epsilon=1, **settings).release(
            random_table(SCHEMA, 5), ledger=ledger
        ),
    )
    assert not ledger.path.exists()


def test_layers_equal_to_columns_is_one_layer_less_with_cells_below():
    deep, less = (
        find("steps")(epsilon=1, order=("a", "b", "c"), layers=layers)
        for layers in (3, 2)
    )
    assert scales_of(deep, SCHEMA) == scales_of(less, SCHEMA)
    assert len(scales_of(deep, SCHEMA)) == 3
