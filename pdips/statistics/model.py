"""A model of noisy statistics: a file that declares them, models them in PyMC, and draws records."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.closures import check_closed
from pdips.posterior.model import quiet
from pdips.posterior.model_checks import check_proper
from pdips.posterior.model_file import load
from pdips.privacy.loss import Neighbours
from pdips.statistics.noisy_model import Given
from pdips.statistics.shipped import shipped
from pdips.statistics.statistic import Counts, Statistic

Draw = Mapping[str, NDArray[Any]]
Columns = Mapping[str, NDArray[Any]]

CONTRACT = {
    "statistics": "statistics(schema), which says what is counted and summed",
    "build_model": "build_model(given, schema), which returns a pm.Model of noisy statistics",
    "draw_records": "draw_records(draw, records, schema, rng), which returns columns drawn at one posterior draw",
}

TOTAL = "records"
"""What the number of records is called where a model counts nothing else and the number is protected."""


@dataclass(frozen=True)
class Wanted:
    """The records that a model is to draw: how many, and their public columns.

    Parameters
    ----------
    n : int
        Number of records.
    public : mapping of str to ndarray, shape (n,)
        ``records["x"]`` is a public column as models read it.
    """

    n: int
    public: Columns = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.public[name]


@dataclass(frozen=True)
class StatisticModel:
    """A model of noisy statistics.

    Parameters
    ----------
    statistics : callable
        Takes the schema; returns statistics by name.
    build_model : callable
        Takes :class:`Given` and the schema; returns a ``pm.Model``.
    draw_records : callable
        Takes one posterior draw (values by variable), :class:`Wanted`, the schema and a Generator; returns columns.
    name : str
        For people and ``privacy.json``.
    text : str
        The Python source, which is public.
    draw_rest : callable, optional
        Takes the :class:`Given` on which the model was built, draws by variable, shape (n_draws, ...), the schema and a
        Generator; returns draws of what the model integrates out, one for each draw, such as shares given counts.
    """

    statistics: Callable[[Schema], Mapping[str, Statistic]] = field(repr=False)
    build_model: Callable[[Given, Schema], pm.Model] = field(repr=False)
    draw_records: Callable[[Draw, Wanted, Schema, np.random.Generator], Columns] = field(repr=False)
    name: str = "model"
    text: str = field(default="", repr=False)
    draw_rest: Callable[[Given, Draw, Schema, np.random.Generator], Draw] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.name

    def declared(self, schema: Schema, neighbours: Neighbours) -> dict[str, Statistic]:
        """Return the statistics that the model declares for a schema, checked.

        Under add-remove the number of records is counted too, if nothing that is counted says it.

        Raises
        ------
        InputError
            If the schema has impossible combinations, a function of the model holds what could be records,
            ``statistics`` fails, or what it returns isn't statistics by name.
        """
        for function in (self.statistics, self.build_model, self.draw_records, self.draw_rest):
            if function is not None:
                check_closed(function, self.name, self.text)
        if schema.impossible:
            raise InputError(
                "the schema has [[impossible]] combinations, of which a model knows nothing: it would draw them; take "
                "steps, or describe the combined column by one column with levels"
            )
        found = self._call("statistics", self.statistics, schema)
        declared = shipped(found, self.name)
        for statistic in declared.values():
            statistic.check(schema)
        if neighbours == "replace-one" or any(isinstance(each, Counts) for each in declared.values()):
            return declared
        if TOTAL in declared:
            raise InputError(f"{self.name}: under add-remove {TOTAL!r} is the number of records; rename that statistic")
        return declared | {TOTAL: Counts()}

    def built(self, given: Given) -> pm.Model:
        """Return the model of some noisy statistics, checked.

        Raises
        ------
        InputError
            If the function fails, returns no model, or a prior is improper.
        """
        with quiet():
            model = self._call("build_model", self.build_model, given, given.schema)
        if not isinstance(model, pm.Model):
            raise InputError(f"{self.name}: build_model must return a pm.Model")
        check_proper(model)
        if not model.free_RVs:
            raise InputError(f"{self.name}: build_model returns a model without parameters")
        return model

    def records(self, draw: Draw, wanted: Wanted, schema: Schema, rng: np.random.Generator) -> Columns:
        """Return columns drawn at one posterior draw, checked for names and lengths.

        Raises
        ------
        InputError
            If the function fails, a column is missing or in excess, or one has another length.
        """
        found = self._call("draw_records", self.draw_records, draw, wanted, schema, rng)
        names = [name for name, column in schema.columns.items() if not column.public]
        if not isinstance(found, Mapping) or sorted(found) != sorted(names):
            raise InputError(f"{self.name}: draw_records must return the columns {', '.join(names)}")
        for name in names:
            if np.shape(found[name]) != (wanted.n,):
                raise InputError(f"{self.name}: draw_records returns column {name!r} of another length than asked for")
        return found

    def completed(self, given: Given, draws: Draw, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Return draws, shape (n_draws, ...), with those of ``draw_rest`` where the model has one.

        Raises
        ------
        InputError
            If the function fails, or doesn't return one for each draw.
        """
        if self.draw_rest is None:
            return dict(draws)
        drawn = self._call("draw_rest", self.draw_rest, given, draws, given.schema, rng)
        if not isinstance(drawn, Mapping):
            raise InputError(f"{self.name}: draw_rest must return draws by name")
        found = {name: np.asarray(each) for name, each in drawn.items()}
        n_draws = len(next(iter(draws.values())))
        if any(np.shape(each)[:1] != (n_draws,) for each in found.values()):
            raise InputError(f"{self.name}: draw_rest must return one value for each draw, along the first axis")
        return {**draws, **found}

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - the analyst's own code; it sees public things only
            raise InputError(f"{self.name}: {name} failed: {type(error).__name__}: {error}") from None


def as_statistic_model(model: "str | Path | StatisticModel | Any") -> StatisticModel:
    """Return a model given as a file, the name of one that comes with pdips, a module or a :class:`StatisticModel`.

    Raises
    ------
    InputError
        If there is no such file or model, or it lacks a part of the contract: the message says which.
    """
    if isinstance(model, StatisticModel):
        return model
    module: Any = model
    text = ""
    if isinstance(model, (str, Path)):
        module, path = load(model)
        name, text = path.name, path.read_text(encoding="utf-8")
    else:
        name = getattr(model, "__name__", "model")
    if hasattr(module, "draw_posterior"):
        raise InputError(
            f"{name} has a draw_posterior, which modips takes no more: the posterior is that of build_model. Remove "
            "it; pdips draws models that it recognises faster than NUTS"
        )
    missing = [said for part, said in CONTRACT.items() if not callable(getattr(module, part, None))]
    if missing:
        hint = "; a model of records is for censored-posterior" if len(missing) == 2 else ""
        raise InputError(f"{name} has no {'; no '.join(missing)}: modips needs all three{hint}")
    return StatisticModel(
        module.statistics,
        module.build_model,
        module.draw_records,
        name,
        text,
        getattr(module, "draw_rest", None),
    )
