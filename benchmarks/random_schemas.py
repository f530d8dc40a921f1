"""Random schemas, on which paths are followed."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pdips.data.schema import Schema

Feature = Literal[
    "bins", "numbers", "groups", "missing", "public", "zeros", "rules", "totals"
]


@dataclass(frozen=True)
class RandomSchemas:
    """Random schemas of a few columns.

    Parameters
    ----------
    features : tuple of str
        What they may have beside columns with levels.
    most_columns : int
        At least two.
    weight : bool
        Whether records have a weight.
    """

    features: tuple[Feature, ...] = ()
    most_columns: int = 3
    weight: bool = False

    def draw(self, rng: np.random.Generator, cap: int) -> Schema:
        """Return a schema whose persons have up to ``cap`` records."""
        columns: dict[str, Any] = {}
        n_columns = int(rng.integers(2, self.most_columns + 1))
        for name in "abcdef"[:n_columns]:
            columns[name] = self._column(rng)
        content: dict[str, Any] = {"columns": columns}
        # the first two have levels: rules, zeros and totals name them
        for name in "ab":
            columns[name] = self._levels(rng)
        if "numbers" in self.features:
            columns["x"] = self._number(rng)
        if "public" in self.features:
            columns["p"] = {"levels": ["u", "v"], "public": True}
        content |= self._constraints(columns)
        records: dict[str, Any] = {"max_per_person": cap}
        if rng.random() < 0.5:
            records["person"] = "person"
        if self.weight:
            columns["w"] = {"lower": 0, "upper": 50, "resolution": 0.5}
            records["weight"] = "w"
        return Schema.model_validate(content | {"records": records})

    def _constraints(self, columns: dict[str, Any]) -> dict[str, Any]:
        first = columns["a"]["levels"]
        second = columns["b"]["levels"]
        constraints: dict[str, Any] = {}
        if "zeros" in self.features:
            constraints["impossible"] = [{"a": [first[0]], "b": [second[-1]]}]
        if "rules" in self.features:
            constraints["rule"] = [
                {"if": {"a": [first[-1]]}, "then": {"b": [second[0]]}}
            ]
        if "totals" in self.features:
            # not what the table has: nobody compares
            counts = dict.fromkeys(first, 3)
            if columns["a"].get("missing"):
                counts["missing"] = 1
            constraints["total"] = [{"columns": ["a"], "counts": counts}]
        return constraints

    def _levels(self, rng: np.random.Generator) -> dict[str, Any]:
        n_levels = int(rng.integers(2, 5))
        return {
            "levels": [f"level {k}" for k in range(n_levels)],
            "missing": self._is_missing(rng),
        }

    def _is_missing(self, rng: np.random.Generator) -> bool:
        return "missing" in self.features and bool(rng.random() < 0.5)

    def _column(self, rng: np.random.Generator) -> dict[str, Any]:
        if "bins" in self.features and rng.random() < 0.5:
            bins = int(rng.integers(2, 4))
            missing = self._is_missing(rng)
            return {"lower": 0, "upper": 10, "bins": bins, "missing": missing}
        if "groups" in self.features and rng.random() < 0.7:
            levels = ["a1", "a2", "b1", "b2", "c1"]
            return {"levels": levels, "groups": 1, "missing": self._is_missing(rng)}
        return self._levels(rng)

    def _number(self, rng: np.random.Generator) -> dict[str, Any]:
        missing = self._is_missing(rng)
        kinds: list[dict[str, Any]] = [
            {"lower": -3.0, "upper": 17.5},
            {"lower": 0.5, "upper": 1000.0, "scale": "log"},
            {"lower": 0, "upper": 30, "integer": True},
            {"lower": 0, "upper": 4, "resolution": 0.25},
            {"type": "date", "lower": "2020-01-01", "upper": "2020-03-01"},
        ]
        return kinds[int(rng.integers(len(kinds)))] | {"missing": missing}
