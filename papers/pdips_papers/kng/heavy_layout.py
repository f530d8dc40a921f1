"""How the tables of the study ``heavy-tailed`` are printed."""

import pandas as pd

from pdips_papers.harness.framework import Block
from pdips_papers.kng.heavy_forms import FORMS
from pdips_papers.kng.heavy_measures import BY_COLUMNS
from pdips_papers.kng.heavy_paper import GENERAL, SPECIFIC
from pdips_papers.kng.heavy_tailed import SECONDS, TRUE, error_of


def layout(table: pd.DataFrame) -> list[Block]:
    """Return tables 1 and 2 with what each row truly spends, and what is beyond them."""
    made = set(table["row"])
    rows = {row: row for row in FORMS if row in made}
    parts = (
        ("Table 1: general utility; KM is best at 1000, the others at 0", GENERAL),
        ("Table 2: specific utility; smaller is better", SPECIFIC),
    )
    blocks = [
        Block(title=title, rows=rows, columns={TRUE: TRUE} | {each: each for each in columns})
        for title, columns in parts
    ]
    if any(table["column"].isin([error_of(each) for each in GENERAL])):
        printed = {row: row for row in rows if ((table["row"] == row) & table["paper"].notna()).any()}
        blocks += [
            Block(
                title=f"Standard errors of {title.partition(':')[0].lower()}",
                rows=printed,
                columns={error_of(each): each for each in columns},
                headline=False,
            )
            for title, columns in parts
        ]
    more = {BY_COLUMNS: BY_COLUMNS, SECONDS: SECONDS}
    return [*blocks, Block(title="Beyond the paper", rows=rows, columns=more, headline=False)]
