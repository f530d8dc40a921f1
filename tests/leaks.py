"""Mechanisms whose sets are changed by the table itself: what certificates must see."""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from pdips.data.table import Table
from pdips.mechanism import Drawn, Mechanism


def leaking(
    monkeypatch: pytest.MonkeyPatch,
    mechanism: type[Mechanism],
    change: Callable[[Drawn, Table], Drawn],
) -> None:
    """Let the confidential table change what a mechanism draws."""
    ask = mechanism.ask
    draw = mechanism.draw
    tables = []

    def remembering(self, plan, curator):
        tables.append(curator._table)
        return ask(self, plan, curator)

    def drawing(self, *given):
        return change(draw(self, *given), tables[-1])

    monkeypatch.setattr(mechanism, "ask", remembering)
    monkeypatch.setattr(mechanism, "draw", drawing)


def as_long_as_the_table(drawn: Drawn, table: Table) -> Drawn:
    """Cut the sets to the number of records."""
    return with_sets(drawn, lambda made: made.head(table.n_records))


def with_sets(drawn: Drawn, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Drawn:
    """Change each set."""
    return replace(drawn, sets=[change(made) for made in drawn.sets])
