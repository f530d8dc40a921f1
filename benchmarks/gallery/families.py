"""Families of models, each in a few lines: which are taken, and how, and which are
refused with which sentence.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.model import Blueprint
from pdips.sampling import written_model

RECORDS = 300
SEED = 20261130

ACCEPTED = "accepted"
REFUSED = "refused"
FAILED = "failed"

REGIONS = ("north", "south", "east", "west")
YEARS = tuple(range(2001, 2009))
ITEMS = ("q1", "q2", "q3", "q4")

COLUMNS: dict[str, dict[str, Any]] = {
    "y": {"lower": 0.01, "upper": 50},
    "z": {"lower": -20, "upper": 20},
    "share": {"lower": 0.01, "upper": 0.99},
    "n": {"lower": 0, "upper": 100, "integer": True},
    "vote": {"levels": [0, 1]},
    "answer": {"levels": [1, 2, 3, 4]},
    "party": {"levels": ["a", "b", "c"]},
    "w": {"lower": 0, "upper": 10},
    "x": {"lower": -2, "upper": 2, "public": True},
    "region": {"levels": [*REGIONS], "public": True},
    "year": {"levels": [*YEARS], "public": True},
    "followed": {"lower": 1, "upper": 40, "public": True},
    **{name: {"levels": [0, 1]} for name in ITEMS},
}


@dataclass(frozen=True)
class Family:
    """A family of models, and an example of it.

    Parameters
    ----------
    name, example : str
        What it is called; what is peculiar in the example, in code.
    model : callable or str
        A function ``make(df)``, or a formula.
    settings : dict
        What stands beside a formula.
    """

    name: str
    example: str
    model: Callable[[pd.DataFrame], Any] | str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What came of a family."""

    family: str
    example: str
    ending: str
    sentence: str
    seconds: float  # CPU

    def as_plain(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return dict(vars(self))


def records() -> pd.DataFrame:
    """Return a table of the schema, of which no model is true."""
    rng = np.random.default_rng(SEED)
    columns: dict[str, Any] = {}
    for name, settings in COLUMNS.items():
        if "levels" in settings:
            columns[name] = rng.choice(settings["levels"], RECORDS)
        elif settings.get("integer"):
            columns[name] = rng.integers(0, 20, RECORDS)
        else:
            columns[name] = rng.uniform(settings["lower"], settings["upper"], RECORDS)
    return pd.DataFrame(columns)


def verdict(family: Family) -> Verdict:
    """Say whether a family's example is taken."""
    started = time.process_time()
    ending = ACCEPTED
    sentence = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sentence = _taken(family)
    except InputError as error:
        ending = REFUSED
        sentence = str(error)
    except Exception as error:  # noqa: BLE001 - whatever fails is a row of the table
        line = next(iter(str(error).splitlines()), "")
        ending = FAILED
        sentence = f"{type(error).__name__}: {line}"
    seconds = time.process_time() - started
    return Verdict(family.name, family.example, ending, sentence, seconds)


def _taken(family: Family) -> str:
    """Say in which way an example was taken."""
    check(family.model, Schema(columns=COLUMNS), family.settings, records())
    return "as a formula" if isinstance(family.model, str) else "as `make(df)`"


def check(
    model: Any, schema: Schema, settings: Mapping[str, Any], frame: pd.DataFrame
) -> None:
    """Do what is done with a model before a table is read."""
    written = written_model(model, schema, dict(settings))
    assert written is not None
    source = written.source(frame, schema)
    assert source.converted is not None
    narrow = source.converted.narrowed(schema)
    blueprint = Blueprint(source, source.converted.derived.widened(narrow))
    blueprint.check()
    blueprint.check_gradient()


def verdicts(families: Sequence[Family]) -> Iterator[Verdict]:
    """Look at families, and print what came of each."""
    for family in families:
        found = verdict(family)
        line = f"{found.family}: {found.ending}, {found.seconds:.1f} CPU s."
        print(f"{line} {found.sentence}", flush=True)
        yield found
