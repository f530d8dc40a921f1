"""More sets from public files: the noisy numbers are played back, and sets differ as much as the noise makes unsure."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips import LaplaceSanitizer, Pairs, Schema, Steps, Table, more_sets, synthesize
from pdips.privacy.curator import Published
from pdips.release.noisy_margins import unstacked

N = 1_000


def survey(*, public: bool = False, plain: bool = False) -> Table:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], N), "job": rng.choice([11, 12, 21, 22, 23], N)})
    frame["ill"] = rng.random(N) < np.where(frame["sex"] == "f", 0.2, 0.4)
    columns = {"sex": {"levels": ["f", "m"]}, "job": {"levels": [11, 12, 21, 22, 23]}, "ill": {"levels": [False, True]}}
    if public:
        columns["sex"]["public"] = True
    if plain:
        return Table(frame, Schema(columns=columns))
    frame["money"] = np.where(rng.random(N) < 0.3, np.nan, np.round(np.exp(rng.normal(6, 1, N))).clip(0, 9_000))
    frame["w"] = np.exp(rng.normal(3, 1, N)).clip(1, 5_000)
    columns["job"]["groups"] = {"1": [11, 12], "2": [21, 22, 23]}
    columns |= {"money": {"lower": 0, "upper": 10_000, "integer": True, "missing": True}}
    columns |= {"w": {"lower": 1, "upper": 5_000}}
    return Table(frame, Schema(columns=columns, records={"weight": "w"}))


@pytest.mark.parametrize(
    ("settings", "public"),
    [
        ({"kind": "pure"}, False),
        ({"kind": "zcdp", "weighted": ("sex", "job")}, False),
        ({"kind": "zcdp", "neighbours": "add-remove", "weighted": ("ill",)}, False),
        ({"kind": "pure", "neighbours": "add-remove"}, False),
        ({"kind": "zcdp"}, True),
        ({"kind": "zcdp", "n_sets": 2}, False),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else None,
)
@pytest.mark.filterwarnings("ignore::pdips.errors.UselessWarning")
def test_all_noisy_numbers_are_those_that_were_published(settings, public, tmp_path, monkeypatch):
    table = survey(public=public)
    release, _ = Pairs(epsilon=2, **settings).release(table, rng=np.random.default_rng(3))
    release.write(tmp_path)
    seen = list[pd.DataFrame]()
    whole = Pairs.synthesize

    def watched(mechanism, plan, curator, rng):
        assert isinstance(curator, Published)
        drawn = whole(mechanism, plan, curator, rng)
        assert curator.finished
        both = drawn.margins, unstacked(release.margins, release.tables["margins"])
        measured, told = ([(m.law, m.noisy.tolist()) for m in each if m.law.law != "estimate"] for each in both)
        assert measured == told
        for name in ("intervals", "weighted_sums", "cuts", "products", "caps"):
            if name in release.tables:
                pd.testing.assert_frame_equal(drawn.tables[name], release.tables[name])
        seen.extend(drawn.sets)
        return drawn

    monkeypatch.setattr(Pairs, "synthesize", watched)
    for source in (release, tmp_path):
        found = more_sets(source, 2, rng=np.random.default_rng(4))
        assert [list(frame) for frame in found] == [list(table.schema.columns)] * 2
        assert not found[0].equals(found[1])
        for frame in found:
            Table(frame, table.schema.without_person())
    assert len(seen) == 4
    assert ("products" in release.tables) == ("n_sets" in settings)
    if public:
        assert found[0]["sex"].tolist() == release.sets[0]["sex"].tolist()


@pytest.mark.parametrize("build", [partial(Pairs, kind="zcdp"), Steps], ids=["pairs", "steps"])
def test_later_sets_differ_as_much_as_noise_and_sampling_say(build):
    # of 40 sets the variance of a count is within .4 and 2 times noise + sampling, error rate below 10^-4
    table = survey(plain=True)
    release, _ = build(epsilon=1).release(table, rng=np.random.default_rng(5))
    noise = {each.columns: each.standard_error**2 for each in release.margin_errors}[("ill",)]
    expected = noise + N * 0.3 * 0.7
    sets = more_sets(release, 40, rng=np.random.default_rng(6))
    assert 0.4 * expected < np.var([frame["ill"].sum() for frame in sets], ddof=1) < 2 * expected
    mean = np.mean([frame["ill"].sum() for frame in sets])
    assert abs(mean - release.sets[0]["ill"].sum()) < 5 * np.sqrt(expected / 40 + noise)
    # the broken twin: sets of the field that fits best
    fitted, _ = build(epsilon=1, n_sets=40, sets="fitted").release(table, rng=np.random.default_rng(6))
    assert np.var([frame["ill"].sum() for frame in fitted.sets], ddof=1) < 0.4 * expected


def test_public_totals_and_weights_hold_in_later_sets():
    table, total = survey(), {"columns": ["sex"], "counts": {"f": 50_000, "m": 60_000}, "weighted": True}
    table = Table(table.frame, Schema.model_validate(table.schema.to_dict() | {"total": [total]}))
    release, _ = Pairs(epsilon=4, kind="zcdp").release(table, rng=np.random.default_rng(7))
    for frame in more_sets(release, 2, rng=np.random.default_rng(8)):
        assert frame.groupby("sex")["w"].sum().to_numpy() == pytest.approx([50_000, 60_000])


@pytest.mark.filterwarnings("ignore::pdips.errors.UselessWarning")
def test_a_folder_that_says_nothing_of_a_second_count_had_none(tmp_path):
    """With a second count, or with noise of another scale than the default share gives, it is refused."""
    for setting, share, name in (("second", 0, "once"), ("second", "1/2", "twice"), ("single", "1/7", "other")):
        made = Pairs(epsilon=2, kind="zcdp", **{f"{setting}_share": share})
        made.release(survey(), rng=np.random.default_rng(3))[0].write(tmp_path / name)
        file = tmp_path / name / "privacy.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["settings"].pop(f"{setting}_share") == str(share)
        file.write_text(json.dumps(document), encoding="utf-8")
    assert len(more_sets(tmp_path / "once", 1)) == 1
    for name in ("twice", "other"):
        refuses("other margins, or other noise", more_sets, tmp_path / name, 1)


def test_what_has_no_noisy_counts_is_refused(tmp_path):
    table = survey(plain=True)
    for mechanism, n_sets, message in (
        (LaplaceSanitizer(epsilon=1), 2, "of pairs or steps"),
        (Steps(epsilon=1, n_sets=2, split="per-set"), 2, "from one noisy answer"),
        (Steps(epsilon=1, layers=1), 2, "for margins alone"),
        (Pairs(epsilon=1), 0, "n_sets"),
    ):
        refuses(message, more_sets, mechanism.release(table, rng=np.random.default_rng(1))[0], n_sets)
    synthesize(table.frame, table.schema, epsilon=1, mechanism="pairs")[0].write(tmp_path)
    (margins,) = tmp_path.rglob("margins.*")
    frame = pd.read_parquet(margins)
    frame.assign(noisy=frame["noisy"] + 1).to_parquet(margins)
    refuses("isn't the file that was published", more_sets, tmp_path, 2)
