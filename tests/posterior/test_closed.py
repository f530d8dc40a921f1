"""Functions that are given as models: what they hold beside their code is small and
written down, or refused.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy import log as natural_log
from pytensor.tensor import exp
from small_models import PAIRS, normal
from tables import cases, refuses

from pdips import CensoredPosterior, PseudoPosterior, Schema
from pdips.posterior.closures import MOST, check_closed, source_of
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source, as_source

FRAME = pd.DataFrame({"y": [1.0, 2.0]})
RECORDS = np.arange(MOST + 1.0)
KNOTS = [0.0, 0.5, 1.0]
SCALES = {"y": 3}


def line(scale):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b", 0, float(scale)), 1)
    return model


def reads_a_frame(data, schema):
    return line(FRAME["y"].mean())


def mean_of_records():
    return RECORDS.mean()


def in_an_inner_function(data, schema):
    def scale():
        return RECORDS.std()

    return line(scale())


def by_default(data, schema, held=RECORDS):
    return line(held.mean())


def in_a_closure(held):
    return lambda data, schema: line(held[0])


def given(data, schema, *, held):
    return line(held[0])


@dataclass
class Model:
    held: Any

    def __call__(self, data, schema):
        return line(self.held)

    def build(self, data, schema):
        return line(self.held)


class Settings:
    HELD = RECORDS


@functools.cache
def remembered():
    return line(RECORDS[0])


HOLDING = {
    "a global frame": (reads_a_frame, "'FRAME'", "DataFrame"),
    "a helper's global": (
        lambda data, schema: line(mean_of_records()),
        "'RECORDS'",
        "ndarray",
    ),
    "an inner function's global": (in_an_inner_function, "'RECORDS'", "ndarray"),
    "a default": (by_default, "'a default of by_default'", "ndarray"),
    "a closure": (in_a_closure(FRAME["y"]), "'held'", "Series"),
    "a long list": (in_a_closure(list(range(MOST + 1))), "'held'", "list"),
    "lists in a dict": (
        in_a_closure({i: [1, 2, 3] for i in range(20)}),
        "'held'",
        "dict",
    ),
    "a long text": (in_a_closure("1,2\n" * 2_000), "'held'", "str"),
    "objects": (
        in_a_closure(np.array([FRAME, None], dtype=object)),
        "'held'",
        "ndarray",
    ),
    "a partial": (functools.partial(given, held=RECORDS), "'partial'", "ndarray"),
    "an object": (Model(RECORDS), "'Model.held'", "ndarray"),
    "a method": (Model(RECORDS).build, "'build.held'", "ndarray"),
    "a class": (
        lambda data, schema: line(Settings.HELD[0]),
        "'Settings.HELD'",
        "ndarray",
    ),
    "a cached function": (remembered, "'RECORDS'", "ndarray"),
}


@pytest.mark.parametrize("name", HOLDING)
def test_what_could_be_records_is_refused(name):
    function, held, kind = HOLDING[name]
    said = refuses("", check_closed, function, "the model")
    assert f"reads {held} from outside of its code: {kind}" in said
    assert "data[...] only" in said


def reads_constants(data, schema):
    return line(KNOTS[1] + SCALES["y"] + natural_log(2.0) + math.pi + np.pi)


def test_small_constants_are_written_down_and_attributes_of_their_names_are_not():
    assert check_closed(reads_constants, "m") == {
        "KNOTS": "[0.0, 0.5, 1.0]",
        "SCALES": "{'y': 3}",
    }
    assert check_closed(in_a_closure(np.array([1, 2])), "m") == {
        "held": "array([1, 2])"
    }
    assert check_closed(functools.partial(given, held=[3]), "m") == {"partial": "[3]"}
    assert check_closed(Model(2.5), "m") == {"Model.held": "2.5"}
    assert check_closed(lambda data, schema: line(exp(0.0).eval()), "m") == {}
    assert check_closed(lambda data, schema: line(schema.FRAME), "m") == {}


def test_the_source_of_a_function_holds_its_helpers_and_constants():
    text = source_of(reads_constants, "m")
    assert text.startswith("KNOTS = [0.0, 0.5, 1.0]\n")
    assert "def line(scale):" in text
    assert as_source(reads_constants).text == text
    one, other = as_source(in_a_closure([1])), as_source(in_a_closure([2]))
    assert one.key != other.key
    assert "held = [1]" in one.text


def test_a_function_without_a_source_says_so():
    space, schema = {}, Schema(columns={"y": {"lower": -9, "upper": 9}})
    exec(cases(__file__, "closed_unrecorded"), space)
    assert as_source(space["build"]).text == ""
    for kind in (CensoredPosterior, PseudoPosterior):
        assert ("source is not recorded") in kind(
            epsilon=1, model=space["build"]
        ).privacy_loss(schema).statement
        assert ("source is not recorded") not in kind(
            epsilon=1, model=normal
        ).privacy_loss(schema).statement
        assert kind(epsilon=1, model=space["build"]).settings()["model_source"] is None
        assert (
            "KNOTS = [0.0"
            in kind(epsilon=1, model=reads_constants).settings()["model_source"]
        )


def test_a_model_of_any_origin_is_looked_at_and_one_in_place_of_its_function_refused():
    refuses("'FRAME'", as_source, reads_a_frame)
    refuses("'FRAME'", Blueprint, Source(reads_a_frame, "mine"), PAIRS)
    with pm.Model() as model:
        pm.Normal("x")
    refuses(
        r"a function build_model\(data, schema\), and is of type "
        r"Model",
        as_source,
        model,
    )


def test_a_file_may_hold_what_is_written_out_in_it(tmp_path):
    path, text = tmp_path / "mine.py", cases(__file__, "closed_file")
    path.write_text(text.format(constants=f"HELD = {list(range(1, 200))}"))
    assert Blueprint(as_source(path), PAIRS).n_parameters == 1
    path.write_text(text.format(constants="HELD = np.linspace(1, 2, 200)"))
    refuses(
        r"mine\.py reads 'HELD' from outside of its code: "
        r"ndarray",
        Blueprint,
        as_source(path),
        PAIRS,
    )
