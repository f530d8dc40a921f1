"""Each model of the gallery from the command line on a real table, down to files that keep the schema."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from gallery_tables import EXAMPLE

from pdips import Schema, Table, cli

ON_A_GRID = ("beta", "normal")
BY_CHAINS = sorted(set(EXAMPLE) - set(ON_A_GRID))
RECORDS = 200
"""Of the tables for models that need chains, where these are left out."""


def run(monkeypatch, folder: Path, name: str, *more: str, n_records: int | None = None) -> Path:
    example = EXAMPLE[name]
    frame = example.load()
    if n_records is not None:
        frame = frame.sample(min(n_records, len(frame)), random_state=5).reset_index(drop=True)
    frame.to_parquet(folder / "t.parquet")
    (folder / "s.toml").write_text(example.schema_text)
    words = f"synthesize {folder}/t.parquet --schema {folder}/s.toml --mechanism censored-posterior --model {name}"
    monkeypatch.setattr(sys, "argv", ["pdips", *words.split(), "--epsilon", "2", "--out", str(folder / "out"), *more])
    cli.main()
    return folder / "out"


def check(out: Path, name: str) -> None:
    """Check what there is, and that the synthetic set is a table of the same schema."""
    example = EXAMPLE[name]
    schema = Schema.from_toml(example.schema_text)
    made = Table.read(out / "public/synthetic_1.parquet", schema.without_person())
    given = Table.read(out.parent / "t.parquet", schema)
    assert made.n_records == given.n_records
    for column in schema.public_columns:
        np.testing.assert_array_equal(np.sort(made.codes[column]), np.sort(given.codes[column]))
    facts = json.loads((out / "public/privacy.json").read_text())
    assert facts["settings"]["model"] == f"{name}.py"
    assert "build_model" in facts["settings"]["model_source"]
    run = json.loads((out / "confidential/run.json").read_text())
    posterior = run["diagnostics"]["posterior"]
    assert posterior["parameters"]
    assert posterior["bounds"].get("failed") is None
    assert posterior["bounds"]["bound"] > 0
    assert "The posterior" in (out / "confidential/report.html").read_text()


@pytest.mark.parametrize("name", ON_A_GRID)
def test_a_model_on_a_grid_end_to_end(monkeypatch, tmp_path, name):
    check(run(monkeypatch, tmp_path, name), name)


@pytest.mark.long
@pytest.mark.parametrize("name", BY_CHAINS)
def test_a_model_by_chains_end_to_end(monkeypatch, tmp_path, name):
    """The real sampler, compiler and gate, on the whole table where it is small."""
    many = len(EXAMPLE[name].load()) > 1000
    settings = ["--option", "draws=800", "--option", "tune=500"]
    check(run(monkeypatch, tmp_path, name, *settings, n_records=1000 if many else None), name)


@pytest.mark.parametrize("name", BY_CHAINS)
def test_a_model_by_chains_end_to_end_without_a_sampler(monkeypatch, tmp_path, name):
    """All but the sampler: draws near the private reference stand in for its chains."""
    import arviz as az

    from pdips.convergence import converged
    from pdips.posterior import nuts as chains
    from pdips.posterior import private_reference as stages
    from pdips.posterior.model import constrained

    def near(model, *, chains, rng, start, **_):
        place = np.concatenate([np.ravel(start[value.name]) for value in model.model.value_vars])
        each = constrained(model.model, place + 0.01 * rng.standard_normal((chains * 50, len(place))))
        stacked = {
            key: np.stack([one[key] for one in each]).reshape(chains, 50, *each[0][key].shape) for key in each[0]
        }
        stats = {"diverging": np.zeros((chains, 50), dtype=bool)}
        return az.from_dict({"posterior": stacked, "sample_stats": stats})

    monkeypatch.setattr(stages, "SIMULATED", 128)
    monkeypatch.setattr(chains, "sample", near)
    monkeypatch.setattr(chains, "converged", lambda tree, *_: converged(tree))
    monkeypatch.setattr(chains, "require", lambda _: None)
    check(run(monkeypatch, tmp_path, name, n_records=RECORDS), name)
