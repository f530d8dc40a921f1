"""What a conditioned model reads of a table mustn't follow from its records: whatever
one person's records are, it is read in one way, or refused.
"""

import contextlib

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest

import pdips
from pdips import Ledger, Schema
from pdips.conversion.conditioned import Conditioned
from pdips.conversion.formula_priors import prior_of
from pdips.conversion.matching import reading_of
from pdips.conversion.only_readings import is_only_reading, parts_of, typed_form
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.sampling import source_of_conditioned

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)
N = 400
RNG = np.random.default_rng(5)
FLAG = RNG.integers(0, 2, N)
PAY = RNG.normal(5 + FLAG, 1).clip(0, 10)


def model_of(array, pay):
    with pm.Model() as model:
        a = pm.Normal("a", 5, 5)
        b = pm.Normal("b", 0, 5)
        pm.Normal("pay", a + b * np.asarray(array), 1, observed=np.asarray(pay))
    return model


def schema_of(**columns: dict) -> Schema:
    return Schema(columns={"pay": {"lower": 0, "upper": 10}, **columns})


LEVELS = {"levels": [0, 1]}
REFUSED = r"agrees with more than one column|isn't known as a function"
NUMBER = {"lower": 0, "upper": 1}
RARE = np.where(np.arange(N) == 7, 1, 0)
# what the model reads of the frame, the columns beside the outcome, the frame, and what
# one person changes in it
UNSURE = {
    "equal columns": (
        lambda frame: frame["treated"],
        {"treated": LEVELS, "ill": LEVELS},
        {"treated": FLAG, "ill": FLAG},
        {"ill": 1 - FLAG[3]},
    ),
    "a public twin": (
        lambda frame: frame["ill"],
        {"sex": {**LEVELS, "public": True}, "ill": LEVELS},
        {"sex": FLAG, "ill": FLAG},
        {"ill": 1 - FLAG[3]},
    ),
    "functions of two numbers": (
        lambda frame: np.sqrt(frame["visits"]),
        {"visits": NUMBER},
        {"visits": FLAG.astype(float)},
        {"visits": 0.25},
    ),
    "a flag that nobody has": (
        lambda frame: frame["ill"],
        {"ill": LEVELS},
        {"ill": np.zeros(N, dtype=int)},
        {"ill": 1},
    ),
    "a level that one person has": (
        lambda frame: frame["site"],
        {"site": {"levels": [0, 1, 2]}},
        {"site": np.where(np.arange(N) == 3, 2, FLAG)},
        {"site": 1},
    ),
    "a flag that one person has": (
        lambda frame: frame["ill"],
        {"ill": LEVELS, "visits": NUMBER},
        {"ill": RARE, "visits": RNG.uniform(0, 1, N)},
        {"ill": 1},
    ),
}


@pytest.mark.parametrize("case", UNSURE)
def test_what_one_record_decides_is_refused_in_both_tables(case):
    reads, columns, cells, changed = UNSURE[case]
    schema = schema_of(**columns)
    frame = pd.DataFrame({"pay": PAY, **cells})
    other = frame.copy()
    for name, value in changed.items():
        other.loc[3, name] = value
    for each in (frame, other):
        model = model_of(reads(each), each["pay"])
        with pytest.raises(
            DataError,
            match=REFUSED,
        ):
            source_of_conditioned(model, each, schema)


def test_what_is_read_in_one_way_is_taken():
    columns = {"ill": LEVELS, "visits": {"lower": 0, "upper": 1, "integer": True}}
    cells = {"ill": FLAG, "visits": RNG.integers(0, 2, N)}
    frame = pd.DataFrame({"pay": PAY, **cells})
    for reads in (lambda f: f["ill"], lambda f: np.sqrt(f["visits"])):
        model = model_of(reads(frame), frame["pay"])
        source = source_of_conditioned(model, frame, schema_of(**columns))
        assert source.converted is not None


def test_one_truth_value_for_all_is_a_constant():
    frame = pd.DataFrame({"pay": PAY, "visits": RNG.uniform(0, 1, N)})
    with pm.Model() as model:
        everybody = pm.Data("everybody", np.ones(N, dtype=bool))
        pm.Normal("pay", pm.Normal("a", 5, 5) * everybody, 1, observed=PAY)
    source = source_of_conditioned(model, frame, schema_of(visits=NUMBER))
    assert source.converted is not None


def test_no_neighbour_of_an_only_reading_has_another_one():
    """Small tables in which columns agree often, and one record changed at random: the
    first reading that fits differs in some of them, an only one in none.
    """
    schema = schema_of(a=LEVELS, b=LEVELS, c={"lower": 0, "upper": 9})
    columns = {name: schema.columns[name] for name in "abc"}
    rng = np.random.default_rng(11)
    n_tables = 0
    n_first_differ = 0
    for _ in range(4_000):
        first = rng.integers(0, 2, 12)
        flips = rng.random(12) < rng.choice([0, 0.1, 0.5])
        values = {"a": first, "b": first ^ flips, "c": rng.integers(0, 4, 12) * 1.0}
        changed = {name: each.copy() for name, each in values.items()}
        row = rng.integers(12)
        changed["a"][row] = rng.integers(0, 2)
        changed["b"][row] = rng.integers(0, 2)
        changed["c"][row] = rng.integers(0, 4)
        name = rng.choice([*"abc"])
        arrays = [values[name] * 1.0, changed[name] * 1.0]
        readings = []
        for array, known in zip(arrays, (values, changed), strict=True):
            reading = reading_of(array, known, columns)
            is_only = reading is not None and is_only_reading(
                reading, array, known, columns, parts_of(array, known, 1)
            )
            readings.append((reading, is_only))
        (one, one_only), (other, other_only) = readings
        n_first_differ += one is not None and other is not None and one != other
        if one_only and other_only:
            n_tables += 1
            assert one == other
    assert n_tables > 300
    assert n_first_differ > 30  # the broken twin: the first that fits


FAR = 1e12
WIDE = {"lower": -FAR, "upper": FAR}
FLAGS = {"a": LEVELS, "p": {**LEVELS, "public": True}}
OF_A_RECORD = {
    "itself": lambda f: f["x"] * 1,
    "steeper far out": lambda f: np.where(f["x"] > 500, 2 * f["x"], f["x"]),
    "absolute": lambda f: np.abs(f["x"]),
    "moved far out": lambda f: np.where(f["x"] > 1e11, f["x"] + 500, f["x"]),
    "nearly itself": lambda f: f["x"] + 1e-10 * f["z"],
    "scaled": lambda f: 2 * f["x"],
    "of two columns": lambda f: np.where(f["a"] == 0, f["x"], f["z"]),
    "of a flag": lambda f: f["a"] * 1.0,
    "of both flags": lambda f: f["a"] * f["p"] * 1.0,
    "public for some": lambda f: np.where(f["a"] == 0, f["p"], f["q"]) * 1.0,
}


def numbers_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "far":
        is_far = rng.random(n) < 0.3
        return np.where(is_far, rng.choice([FAR, -FAR, 1e9]), rng.uniform(0, 1_000, n))
    if kind == "near":
        return 1e6 + rng.integers(0, 3, n) * 1e-4
    return {
        "signs": rng.choice([-1.0, 0.0, 1.0], n),
        "even": rng.uniform(0, 1, n),
        "few": rng.integers(0, 3, n) * 1.0,
    }[kind]


def random_frame(rng: np.random.Generator) -> pd.DataFrame:
    n = int(rng.integers(9, 60))
    kinds = ["far", "near", "signs", "even", "few"]
    x, z, q = (numbers_of(rng.choice(kinds), n, rng) for _ in "xzq")
    z = np.where(rng.random(n) < rng.choice([0, 0.1, 1]), z, x)
    a, p = rng.integers(0, 2, (2, n))
    q = np.where(rng.random(n) < 0.3, q, p)
    return pd.DataFrame({"x": x, "z": z, "a": a, "p": p, "q": q})


def changed_in_one(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    other = frame.copy()
    row = rng.integers(len(frame))
    others = [0, 1, FAR, -FAR, 1e9, 1e6, float(frame["x"].iloc[-1])]
    for name in "xz":
        if rng.random() < 0.7:
            other.loc[row, name] = rng.choice(others)
    other.loc[row, "a"] = rng.integers(0, 2)
    # a file may be sorted: then who is replaced moves others
    return other.sample(frac=1, random_state=int(rng.integers(99)), ignore_index=True)


def seen(frame: pd.DataFrame, reads, schema: Schema) -> object:
    """Return what an array is taken for, None where the model is refused."""
    array = np.asarray(reads(frame))
    conditioned = Conditioned(pm.Model(), Table(frame, schema))
    try:
        reading = conditioned.reading(array)
    except InputError:
        return None
    if reading is not None:
        return typed_form(reading) and reading
    if not conditioned._is_public(array):
        return None
    # public as it looks: what it is must follow from the public columns of records
    public = pd.DataFrame({"p": frame["p"], "q": frame["q"], "array": array * 1.0})
    return public.sort_values([*public.columns], ignore_index=True).to_csv()


def test_no_record_far_out_decides_what_an_array_is():
    """What fits was judged by the spread of all records: with one far out, lines fitted
    that no other record is on. That twin, the first reading that fits, is found.
    """
    schema = Schema(
        columns={"x": WIDE, "z": WIDE, **FLAGS, "q": {**WIDE, "public": True}}
    )
    rng = np.random.default_rng(17)
    n_read = 0
    n_first_differ = 0
    columns = dict(schema.columns)
    for _ in range(350):
        frame = random_frame(rng)
        other = changed_in_one(frame, rng)
        reads = OF_A_RECORD[rng.choice([*OF_A_RECORD])]
        firsts = []
        for each in (frame, other):
            values = {name: each[name].to_numpy() for name in columns}
            firsts.append(reading_of(np.asarray(reads(each)) * 1.0, values, columns))
        n_first_differ += None not in firsts and firsts[0] != firsts[1]
        takes = [seen(each, reads, schema) for each in (frame, other)]
        if None not in takes:
            n_read += 1
            assert takes[0] == takes[1]
    assert n_read > 30
    assert n_first_differ > 20


@pytest.mark.parametrize("case", ["a level of one person", "far out"])
def test_public_numbers_that_one_record_decides_are_refused(case):
    """They look public in both tables, and one person's number follows from what is
    confidential of them: one of the two has to be refused.
    """
    sites = np.arange(N) % 5
    sites[3] = 5
    sizes = np.where(sites == 5, FAR, 1.0 + sites)
    frame = pd.DataFrame({"pay": PAY, "site": sites, "size": sizes, "ill": FLAG})
    columns = {"ill": LEVELS, "size": {**WIDE, "public": True}}
    if case == "a level of one person":
        columns = {"ill": LEVELS, "site": {"levels": [*range(6)], "public": True}}
    frame = frame[["pay", *columns]]
    n_accepted = 0
    for ill in (0, 1):
        other = frame.assign(ill=np.where(sites == 5, ill, FLAG))
        array = sizes * np.where(sites == 5, 1 + ill, 1)
        if case == "a level of one person":
            array = np.where(sites == 5, ill, 2.0 * sites)
        with contextlib.suppress(DataError):
            source_of_conditioned(model_of(array, PAY), other, schema_of(**columns))
            n_accepted += 1
    assert n_accepted < 2


def test_a_line_that_one_record_far_out_makes_is_refused():
    x = RNG.choice([-1.0, 0.0, 1.0], N)
    x[3] = 1e9
    frame = pd.DataFrame({"pay": PAY, "x": x})
    model = model_of(np.abs(x), frame["pay"])
    with pytest.raises(DataError, match=REFUSED):
        source_of_conditioned(model, frame, schema_of(x=WIDE))


def test_a_protected_number_of_records_takes_no_conditioned_model(tmp_path):
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.set_total(1, neighbours="add-remove")
    frame = pd.DataFrame({"pay": PAY})
    with pytest.raises(InputError, match="shows the number of records") as refusal:
        pdips.sample(
            model_of(0.5, PAY),
            frame,
            schema_of(),
            epsilon=0.5,
            neighbours="add-remove",
            public_constants=True,
            ledger=ledger,
        )
    assert not isinstance(refusal.value, DataError)
    assert not ledger.attempts()


def test_what_goes_wrong_with_records_isn_t_quoted():
    frame = pd.DataFrame({"pay": PAY, "salary": RNG.integers(0, 9_000, N)})
    frame.loc[5, "salary"] = 9_876
    schema = schema_of(salary={"lower": 0, "upper": 10_000, "integer": True})
    with pm.Model() as model:
        salary = pm.Data("salary", frame["salary"].to_numpy())
        pay = pm.Data("observed pay", frame["pay"].to_numpy())
        extended = pay + pt.zeros((salary.max(),))
        pm.Normal("pay", pm.Normal("m", 0, 1), 1, observed=extended)
    with pytest.raises(DataError) as refusal:
        source_of_conditioned(model, frame, schema)
    said = str(refusal.value)
    assert said.endswith("failed: ValueError")
    assert not any(each.isdigit() for each in said)


def test_a_conditioned_model_is_looked_at_beside_its_charge_alone(tmp_path):
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.set_total("0.0001")
    frame = pd.DataFrame({"pay": PAY, "ill": FLAG})
    with pytest.raises(InputError, match="has no charge 7"):
        pdips.sample(
            model_of(FLAG, PAY),
            frame,
            schema_of(ill=LEVELS),
            epsilon=1,
            public_constants=True,
            ledger=ledger,
            resume=7,
        )
    assert not ledger.attempts()


def test_a_prior_calls_distributions_alone():
    assert "sigma: 2" in str(prior_of("Normal(mu=0, sigma=2)"))
    for text in ("sample(draws=1)", "Data(name=1)", "get_data(filename=1)", "Model()"):
        with pytest.raises(InputError, match="a prior is written as in"):
            prior_of(text)
