"""Tables of households and members: one wide table, its rules, keys that leave no
trace, and two tables again.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest
from household_tables import schema_of, simulated
from tables import cases, refuses

from pdips import Column, Ledger, Margins, Schema, Table, synthesize
from pdips.data.households import Members
from pdips.errors import DataError
from pdips.privacy.account import Unit
from pdips.registry import MECHANISMS, find

SMALL = {
    "columns": {"rent": {"levels": ["low", "high"]}},
    "members": {
        "key": "id",
        "most": 2,
        "columns": {"age": {"lower": 0, "upper": 99, "bins": 3, "integer": True}},
    },
}
HOMES = pd.DataFrame({"id": ["a", " 7", "c"], "rent": ["low", "high", "low"]})
PEOPLE = pd.DataFrame({"id": ["7.0", "a", "a"], "age": [30, 20, 50]})


def small(**members):
    return Schema(**{**SMALL, "members": {**SMALL["members"], **members}})


def test_two_tables_become_one_and_two_again():
    table = Table.of_households(HOMES, PEOPLE, small(order="age"))
    wide = table.frame
    assert [*wide] == ["rent", "members", "age_1", "age_2"]
    assert wide["members"].tolist() == [2, 1, 0]
    assert wide["age_1"].tolist()[:2] == [50, 30]  # the oldest first
    assert wide["age_2"].isna().tolist() == [False, True, True]
    homes, people = table.schema.members.parted(wide)
    assert homes.to_dict("list") == {"id": [1, 2, 3], "rent": ["low", "high", "low"]}
    assert people.astype(int).to_dict("list") == {"id": [1, 1, 2], "age": [50, 20, 30]}


@pytest.mark.parametrize("order", [None, "age"])
def test_households_without_any_member_are_a_table_like_its_neighbours(order):
    # a refusal would reveal that no household has members
    table = Table.of_households(HOMES, PEOPLE.iloc[:0], small(order=order))
    assert table.frame["members"].tolist() == [0, 0, 0]
    assert table.frame[["age_1", "age_2"]].isna().all(axis=None)
    neighbour = Table.of_households(HOMES, PEOPLE.iloc[:1], small(order=order))
    assert (table.frame["members"] != neighbour.frame["members"]).sum() == 1
    # and by columns it is refused like its neighbours
    for wrong, said in (
        (PEOPLE.drop(columns="age"), "column 'age' of the schema"),
        (PEOPLE.assign(x=1), "column 'x'"),
    ):
        for people in (wrong, wrong.iloc[:0]):
            refuses(said, Table.of_households, HOMES, people, small(order=order))


@pytest.mark.parametrize(
    ("cells", "spelt"),
    [((2**53, 2**53 + 1), str), ((1, 2), str), ((True, False), bool)],
)
def test_the_absent_members_of_other_households_change_no_code(cells, spelt):
    # as doubles the first two whole numbers are one, and others are spelt otherwise
    schema = small(columns={"age": {"levels": [*map(spelt, cells)]}})
    people = pd.DataFrame(
        {"id": ["a", "7", "c"], "age": [cells[1], cells[0], cells[1]]}
    )
    whole, without = (
        Table.of_households(HOMES, each, schema) for each in (people, people[:2])
    )
    assert whole.codes["age_1"].tolist() == [1, 0, 1]
    assert without.codes["age_1"].tolist() == [1, 0, 2]
    assert whole.frame["age_1"].dtype == without.frame["age_1"].dtype


@pytest.mark.parametrize("seed", range(3))
def test_what_goes_in_comes_out(seed):
    homes, people = simulated(200, seed)
    schema = schema_of()
    back = schema.members.parted(Table.of_households(homes, people, schema).frame)
    again = schema.members.parted(Table.of_households(*back, schema).frame)
    for one, other in zip(back, again, strict=True):
        pd.testing.assert_frame_equal(one, other, check_dtype=False)
    assert len(back[1]) == len(people)
    for name in ("age", "works", "relation"):
        expected = people[name].value_counts(dropna=False).sort_index()
        assert (
            back[1][name].value_counts(dropna=False).sort_index().to_numpy()
            == expected.to_numpy()
        ).all()


@pytest.mark.parametrize("kind", ["text", "numbers", "arrow"])
def test_a_household_is_coded_by_its_own_rows_alone(kind):
    """Other households, the order of the files and how keys are written change no
    household's record.
    """
    homes, people = simulated(60)
    schema, pick = schema_of(order="age"), homes["household_id"].iloc[:10]

    def records(homes, people):
        if kind == "text":
            homes, people = (
                homes.astype(str),
                people.astype(str).where(people.notna(), None),
            )
            homes["household_id"] = " 0" + homes["household_id"]
        found = Table.of_households(homes, people, schema)
        return sorted(
            zip(*(found.codes[name].tolist() for name in found.codes), strict=True)
        )

    def part(frame, inside):
        return frame[frame["household_id"].isin(pick) == inside]

    whole = records(homes, people)
    apart = [
        records(part(homes, inside), part(people, inside)) for inside in (True, False)
    ]
    assert whole == sorted(apart[0] + apart[1])
    rng = np.random.default_rng(0)
    mixed = people.sort_values("age", kind="stable") if kind == "arrow" else people
    assert whole == records(
        homes.iloc[rng.permutation(len(homes))],
        mixed.iloc[np.argsort(mixed["household_id"], kind="stable")],
    )


BROKEN = {
    "has no key": (HOMES.assign(id=["a", None, "c"]), PEOPLE[1:]),
    "has no key ": (HOMES, PEOPLE.assign(id=["7", "a", None])),
    "two households have one key": (HOMES.assign(id=["a", "7", "7.0"]), PEOPLE),
    "a member is of no household": (HOMES, PEOPLE.assign(id=["7", "a", "b"])),
    "more than members.most = 2": (HOMES, PEOPLE.assign(id=["a", "a", "a"])),
    "outside its bounds": (HOMES, PEOPLE.assign(age=[30, 20, 100])),
    "column 'rent' has values outside": (HOMES.assign(rent="free"), PEOPLE),
}


@pytest.mark.parametrize("message", BROKEN)
def test_records_that_break_a_rule_refuse_the_table(message):
    said = refuses(
        message.strip(), Table.of_households, *BROKEN[message], small(), error=DataError
    )
    # nothing of a record
    assert not any(word in said for word in ("'a'", "'b'", "7", "100", "free"))


def test_a_larger_household_counts_by_its_first_members_if_the_schema_says_so():
    people = pd.DataFrame({"id": ["a"] * 4, "age": [1, 40, 3, 40]})
    schema = small(too_many="truncate", order="age")
    assert Table.of_households(HOMES, people, schema).frame.iloc[0].tolist() == [
        "low",
        2,
        40,
        40,
    ]
    said = Margins(epsilon=1).privacy_loss(schema).statement
    assert "counts by its first 2 members, in the order of 'age'" in said
    assert "one household (its own record and those of up to 2 members)" in said
    assert "is refused" in Margins(epsilon=1).privacy_loss(small()).statement


@pytest.mark.parametrize(("change", "message"), cases(__file__, "mistakes"))
def test_mistakes_in_the_section_are_named(change, message):
    refuses(message, small, **change)


@pytest.mark.parametrize(
    ("change", "message"), cases(__file__, "what_does_not_go_with_members")
)
def test_what_does_not_go_with_members(change, message):
    refuses(message, Schema, **{**SMALL, **change})


def test_the_schema_is_written_as_it_was_read():
    schema = schema_of(3)
    assert [*schema.to_dict()["columns"]] == ["region", "income", "tenure", "cars"]
    assert Schema.from_toml(schema.to_toml()) == schema
    assert (
        Schema.model_validate(schema.model_dump(exclude_none=True)).columns
        == schema.columns
    )
    few = schema.only(["cars", "relation", "sex"])
    assert [*few.columns][:4] == ["cars", "members", "relation_1", "sex_1"]
    refuses("did you mean 'sex'", schema.only, ["Sex"])
    dated = Members(
        key="id",
        most=1,
        columns={"born": Column(type="date", lower="1990-01-01", upper="2000-12-31")},
    )
    held = Schema(columns={"rent": Column(levels=["low"])}, members=dated)
    assert Schema.from_toml(held.to_toml()) == held


def test_levels_of_members_may_be_in_a_file(tmp_path):
    (tmp_path / "jobs.txt").write_text("11\tBaker\n12\n")
    members = (
        '[members]\nkey = "id"\nmost = 1\n[members.columns.job]\nlevels_file = '
        '"jobs.txt"\n'
    )
    (tmp_path / "s.toml").write_text(f"[columns.a]\nlevels = [1]\n{members}")
    assert Schema.load(tmp_path / "s.toml").columns["job_1"].levels == (11, 12)


def test_the_unit_is_the_household():
    assert Unit.of(small()) == Unit(person="id", cap=2)
    persons = Schema(
        columns={"a": Column(levels=[0])}, records={"person": "id", "max_per_person": 9}
    )
    assert Unit.of(small()).fits(Unit.of(persons))
    assert not Unit.of(small()).fits(Unit())


def test_two_tables_go_with_members_and_one_without():
    for table, schema in (
        (HOMES, small()),
        ((HOMES, PEOPLE), small().plain()),
        ((HOMES, PEOPLE, HOMES), small()),
    ):
        refuses(
            "two tables",
            synthesize,
            table,
            schema,
            epsilon=1,
            mechanism="margins",
            progress=False,
        )
    for wrong in (
        HOMES.drop(columns="id"),
        HOMES.assign(age_1=1),
        pd.concat([HOMES, HOMES[["id"]]], axis=1),
    ):
        refuses(r"'id'|rename|two columns", Table.of_households, wrong, PEOPLE, small())


def test_a_members_table_may_repeat_columns_of_households():
    both = PEOPLE.merge(HOMES.assign(id=["a", "7.0", "c"]))
    assert Table.of_households(HOMES, both, small()).frame["members"].tolist() == [
        2,
        1,
        0,
    ]


@pytest.mark.parametrize("name", sorted({*MECHANISMS} - {"margins"}))
def test_other_mechanisms_refuse_before_the_spend(name):
    model = "multinomial" if name == "modips" else "dpmpm"
    settings = {"model": model} if "model" in find(name).__dataclass_fields__ else {}
    schema = small(columns={"sex": {"levels": ["f", "m"]}})
    refuses(
        "takes no households.*or take margins",
        lambda: find(name)(epsilon=1, **settings).spends(schema),
    )


@pytest.fixture
def folder(tmp_path):
    homes, people = simulated(150)
    homes["household_id"] = [f"key{k}z" for k in homes["household_id"]]
    people["household_id"] = [f"key{k}z" for k in people["household_id"]]
    homes.to_csv(tmp_path / "homes.csv", index=False)
    people.to_parquet(tmp_path / "people.parquet")
    (tmp_path / "s.toml").write_text(schema_of(3, too_many="truncate").to_toml())
    return tmp_path


def words(folder, *more, members="people.parquet"):
    both = (
        "synthesize",
        folder / "homes.csv",
        "--members",
        folder / members,
        "--schema",
        folder / "s.toml",
    )
    return (*both, "--epsilon", 2, "--out", folder / "out", "--quiet", *more)


@pytest.mark.slow
@pytest.mark.long_cases("parquet")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_command_line_takes_two_tables_and_writes_two(folder, pdips, suffix):
    ledger = folder / "l.sqlite"
    more = ("--format", suffix, "--ledger", ledger, "--report")
    code, told, _ = pdips(*words(folder, "--sets", 2, *more))
    assert code == 0
    assert "mechanism margins: it takes households" in told
    assert f"households_1.{suffix} ... _2, members_1.{suffix} ... _2" in told
    public, read = (
        folder / "out" / "public",
        pd.read_csv if suffix == "csv" else pd.read_parquet,
    )
    for number in (1, 2):
        homes, people = (
            read(public / f"{kind}_{number}.{suffix}")
            for kind in ("households", "members")
        )
        wide = read(public / f"synthetic_{number}.{suffix}")
        assert homes["household_id"].tolist() == [*range(1, 151)]
        assert people["household_id"].is_monotonic_increasing
        sizes = (
            people.groupby("household_id")
            .size()
            .reindex(homes["household_id"], fill_value=0)
        )
        assert sizes.tolist() == wide["members"].tolist()
    package = json.loads((public / "datapackage.json").read_text())
    fields = {
        each["name"]: [f["name"] for f in each["schema"]["fields"]]
        for each in package["resources"]
    }
    assert (
        fields["households_1"]
        == [*homes]
        == ["household_id", "region", "income", "tenure", "cars"]
    )
    assert (
        fields["members_2"]
        == [*people]
        == ["household_id", "relation", "age", "sex", "school", "works"]
    )
    stated = json.loads((public / "privacy.json").read_text())
    assert ("counts by its first 3 members, in the order of 'relation'") in stated[
        "privacy"
    ]["statement"]
    card, report = (
        path.read_text()
        for path in (
            public / "card.html",
            folder / "out" / "confidential" / "report.html",
        )
    )
    usual = (
        "applied to a person outside|wait for a person|a person has to "
        "answer|all that one person, or household"
    )
    for page in (card, report):
        told = re.sub(r"(?s)<style.*?</style>|<[^>]*>", "", page)
        assert "household's" in told or "any household" in told
        assert not re.findall(
            r".*\bperson\b.*",
            re.sub(usual, "", re.sub(r"\s+", " ", told), flags=re.IGNORECASE),
        )
    assert "Up to 3 members a household, checked against the key" in report
    written = [path for path in folder.glob("out/**/*") if path.is_file()]
    assert [path.name for path in written if b"key7" in path.read_bytes()] == []
    assert b"key7" in (folder / "homes.csv").read_bytes()
    told = pdips.ok(
        "evaluate",
        folder / "homes.csv",
        folder / "out",
        "--members",
        folder / "people.parquet",
    )
    assert "mean of income" in told
    assert pdips("evaluate", folder / "homes.csv", folder / "out")[0] == 2
    assert ("all records with the same 'household_id'") in pdips(
        "ledger", "show", ledger
    )[1]


@pytest.mark.slow
def test_adopted_tables_have_members_too(folder, pdips):
    ledger = folder / "l.sqlite"
    both = (folder / "homes.csv", "--members", folder / "people.parquet")
    assert pdips(*words(folder, "--ledger", ledger))[0] == 0
    people, adopt = folder / "people.parquet", ("ledger", "adopt", ledger)
    frame = pd.read_parquet(people)
    frame["sex"] = "f"
    frame.to_parquet(people)
    again = words(folder, "--ledger", ledger, "--overwrite")
    assert "belongs to another table" in pdips(*again, "--explain")[2]
    code, _, said = pdips(*adopt, folder / "homes.csv", "--schema", folder / "s.toml")
    assert (code, "needs two tables" in said) == (2, True)
    assert pdips(*adopt, *both, "--schema", folder / "s.toml")[0] == 0
    assert pdips(*again)[0] == 0
    assert len(Ledger(ledger).entries()) == 2


def test_a_refusal_is_the_same_for_all_records(folder, pdips):
    people = pd.read_parquet(folder / "people.parquet")
    people.loc[0, "household_id"] = "key0z"
    people.to_parquet(folder / "people.parquet")
    code, _, said = pdips(*words(folder))
    assert (code, "the same whatever the reason" in said, "a member" in said) == (
        2,
        True,
        False,
    )
    assert "a member is of no household" in pdips(*words(folder, "--explain"))[2]
    assert not (folder / "out").exists()


def test_the_section_is_shown(folder, pdips):
    told = pdips("schema", "check", folder / "s.toml")[1]
    assert (
        "members a household: at most 3, more: truncate; by the key 'household_id'"
    ) in told
    assert pdips("plan", folder / "s.toml", "--html", folder / "plan.html")[0] == 0
    assert ('<div hidden><label for="cap">Most records of one household') in (
        folder / "plan.html"
    ).read_text()


@pytest.mark.slow
def test_a_release_in_memory_is_evaluated_on_both_tables():
    both, schema = simulated(100, most=2), schema_of(2)
    record = synthesize(both, schema, epsilon=1, progress=False)[1]
    assert 0 <= record.evaluate(both).measure("SPECKS").mean <= 1
    refuses("needs two tables", record.evaluate, both[0])
