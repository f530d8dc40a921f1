"""Converted models have the log density of those that were written, and never see a
confidential value.
"""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from written_models import ACCEPTED, SCHEMA, table

from pdips import InputError, Schema, Table
from pdips.conversion.convert import converted_conditioned, converted_model
from pdips.conversion.converted import ConvertedModel
from pdips.conversion.frames import MadeUp
from pdips.posterior.columns import Columns, record_values
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)


def public_of(frame: pd.DataFrame, schema: Schema = SCHEMA) -> Table:
    alone = schema.only(schema.public_columns)
    return Table(frame[list(schema.public_columns)], alone).public_part()


def converted(make, frame, schema=SCHEMA) -> ConvertedModel:
    return converted_model(make, MadeUp(schema, public_of(frame, schema)), "make")


def point_of(model: pm.Model, seed: int = 0) -> dict[str, np.ndarray]:
    """A point near the start, moved so that no parameter is 0."""
    rng = np.random.default_rng(seed)
    start = model.initial_point()
    return {
        name: start[name] + 0.1 * rng.standard_normal(np.shape(start[name]))
        for name in sorted(start)
    }


def log_density(model: pm.Model) -> float:
    function = model.compile_logp(mode="FAST_COMPILE")
    return float(function(point_of(model)))


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_converted_model_has_the_density_of_the_written_one(name) -> None:
    make = ACCEPTED[name]
    frame = table()
    made = converted(make, frame)
    narrow = SCHEMA.only([*made.columns, *SCHEMA.public_columns])
    values = record_values(Table(frame, narrow))
    columns = Columns(made.derived.widened(narrow), made.derived.beside(values))
    model = made.build(columns, narrow)
    written = make(frame)
    assert sorted(v.name for v in model.value_vars) == sorted(
        v.name for v in written.value_vars
    )
    found = log_density(model)
    wanted = log_density(written)
    # what is observed on another scale has its own density: both observe the same
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("name", ACCEPTED)
def test_mechanisms_take_converted_models(name) -> None:
    frame = table()
    made = converted(ACCEPTED[name], frame)
    narrow = SCHEMA.only([*made.columns, *SCHEMA.public_columns])
    source = Source(made.build, name, "text", converted=made)
    blueprint = Blueprint(source, made.derived.widened(narrow))
    blueprint.check()
    assert set(blueprint.synthesized) == set(made.columns)


@pytest.mark.parametrize("name", ACCEPTED)
def test_conversion_reads_no_confidential_value(name) -> None:
    seen = []

    def make(df):
        seen.append(df)
        return ACCEPTED[name](df)

    frame = table()
    other = table(seed=4)
    for column in SCHEMA.public_columns:
        other[column] = frame[column]
    for each in (frame, other):
        converted(make, each)
    half = len(seen) // 2
    for one, two in zip(seen[:half], seen[half:], strict=True):
        pd.testing.assert_frame_equal(one, two)


# Of basis functions nobody knows whether they follow from public columns alone
CONDITIONED = sorted({*ACCEPTED} - {"masked", "smooth"})


@pytest.mark.parametrize("name", CONDITIONED)
def test_a_conditioned_model_is_converted_too(name) -> None:
    frame = table()
    written = ACCEPTED[name](frame)
    whole = Table(frame, SCHEMA)
    made = converted_conditioned(written, whole)
    narrow = SCHEMA.only([*made.columns, *SCHEMA.public_columns])
    values = record_values(Table(frame, narrow))
    columns = Columns(made.derived.widened(narrow), made.derived.beside(values))
    found = log_density(made.build(columns, narrow))
    assert found == pytest.approx(log_density(written), rel=1e-9)


@pytest.mark.parametrize("name", ["centred", "with_dims", "on_logarithms", "logistic"])
def test_the_digest_of_a_conditioned_model_follows_from_no_confidential_value(name):
    frame = table()
    other = table(seed=4)
    for column in SCHEMA.public_columns:
        other[column] = frame[column]
    digests = {
        converted_conditioned(ACCEPTED[name](each), Table(each, SCHEMA)).digest
        for each in (frame, other)
    }
    assert len(digests) == 1


def test_models_with_other_priors_have_other_digests():
    frame = table()

    def digest(deviation):
        with pm.Model() as model:
            a = pm.Normal("a", 170, deviation)
            pm.Normal("obs", a, 10, observed=frame.height.values)
        return converted_conditioned(model, Table(frame, SCHEMA)).digest

    assert digest(3) == digest(3)
    assert digest(3) != digest(0.01)


def test_a_model_that_reads_how_long_its_data_are_is_refused():
    def make(df):
        with pm.Model() as model:
            a = pm.Normal("a", 170, 20)
            y = pm.Data("y", df.height.to_numpy())
            spread = 10 * pm.math.sqrt(y.shape[0] / 100)
            pm.Normal("obs", a, spread, observed=y)
        return model

    made = converted(make, table())
    narrow = SCHEMA.only([*made.columns, *SCHEMA.public_columns])
    source = Source(made.build, "make", "text", converted=made)
    blueprint = Blueprint(source, made.derived.widened(narrow))
    with pytest.raises(InputError, match="how many records there are"):
        blueprint.check()
