"""How the voter study's table is printed."""

import pandas as pd

from pdips_papers.harness.framework import Block
from pdips_papers.steps.voter import AMONG_ALL, FIRTH, REFERENCES, SCORE
from pdips_papers.steps.voter_data import MEASURES

SHORT = {
    "ks_distance": "KS",
    "consistency_1": "1 %",
    "consistency_5": "5 %",
    "consistency_10": "10 %",
    "overlap_all": "CI all",
    "overlap_prereg": "CI prereg.",
    "overlap_registered": "CI reg.",
    "overlap_interaction": "CI pre. x reg.",
}
"""Column heads: SPECKS's KS distance, consistency rates of chi-square tests, overlap of confidence intervals."""


def layout(table: pd.DataFrame) -> list[Block]:
    """Return overall scores, and by epsilon the paper's rows, their ranks, our rows, and overlaps by Firth."""
    rows = [row for row in table["row"].unique() if ": " in row]
    blocks = _scores(table)
    for prefix in dict.fromkeys(row.partition(": ")[0] for row in rows):
        mine = {row: row.removeprefix(f"{prefix}: ") for row in rows if row.startswith(f"{prefix}: ")}
        paper = {row: label.removesuffix(" (published)") for row, label in mine.items() if "(published)" in row}
        others = {row: label for row, label in mine.items() if row not in paper} | _references(table)
        if paper:
            blocks += [
                Block(title=f"Table 3, {prefix}, as published: {title}", rows=paper, columns=columns, group=prefix)
                for title, columns in _families().items()
            ]
            title = f"Table 3, {prefix}: ranks, 1 is the best, and their sum"
            blocks.append(Block(title=title, rows=paper, columns=_ranks(""), group=prefix))
        if others:
            more = {SCORE + AMONG_ALL: "score"} if any(row in mine for row in others) else {}
            title = f"{prefix}: sound forms, and what needs no privacy or no data"
            blocks.append(Block(title=title, rows=others, columns=_values() | more, group=prefix))
        title = f"{prefix}: ranks among all forms"
        blocks.append(Block(title=title, rows=mine, columns=_ranks(AMONG_ALL), headline=False, group=prefix))
        firth = {label: SHORT[key.replace("firth", "overlap")] for key, label in FIRTH.items()}
        title = f"{prefix}: overlap of confidence intervals with Firth's correction"
        blocks.append(Block(title=title, rows=mine | _references(table), columns=firth, headline=False, group=prefix))
    return blocks


def _scores(table: pd.DataFrame) -> list[Block]:
    blocks = []
    for score, title in (
        (SCORE, "Overall score: sum of eight ranks among the paper's six methods, as published; smaller is better"),
        (SCORE + AMONG_ALL, "Overall score among all forms: sum of eight ranks; smaller is better"),
    ):
        mine = table[table["column"].str.startswith(f"{score}, ")]
        if len(mine):
            columns = {column: column.removeprefix(f"{score}, ") for column in mine["column"].unique()}
            rows = {row: row for row in mine["row"].unique()}
            blocks.append(Block(title=title, rows=rows, columns=columns, group="Overall scores"))
    return blocks


def _values() -> dict[str, str]:
    return {label: SHORT[key] for key, label in MEASURES.items()}


def _families() -> dict[str, dict[str, str]]:
    """Return the measures in two halves, which fit a screen with the paper's figures beside them."""
    values = list(_values().items())
    return {"SPECKS and chi-square tests": dict(values[:4]), "confidence intervals": dict(values[4:])}


def _ranks(suffix: str) -> dict[str, str]:
    found = {f"rank, {label}{suffix}": SHORT[key] for key, label in MEASURES.items()}
    return {**found, SCORE + suffix: "score"}


def _references(table: pd.DataFrame) -> dict[str, str]:
    return {row: row for row in REFERENCES if (table["row"] == row).any()}
