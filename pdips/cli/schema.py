"""The commands ``schema ...``."""

from math import isnan

import click

from pdips.report.formats import plural


@click.group()
def schema() -> None:
    """Help with schema files."""


@schema.command("draft")
@click.argument("table", metavar="TABLE")
def schema_draft(table: str) -> None:
    """Print a first guess at a schema of TABLE. What it reads off a confidential table
    is a leak: correct it.
    """
    import pandas as pd

    from pdips.data.readers import read_frame
    from pdips.data.schema import Schema

    frame = read_frame(table)
    for name, column in frame.items():  # of a text file, columns that hold only numbers
        numbers = pd.to_numeric(column, errors="coerce")
        if numbers.notna().sum() == column.notna().sum():
            frame[name] = numbers
    click.echo(Schema.draft(frame), nl=False)
    click.echo(
        "the draft was read off the table: replace its levels and bounds by public "
        "ones, then delete its first line; "
        "no command takes it before",
        err=True,
    )


@schema.command("check")
@click.argument("path", metavar="S.toml")
def schema_check(path: str) -> None:
    """Check a schema file, which may no longer be a draft, and say what a histogram
    mechanism would make of it.
    """
    from pdips.data.schema import Schema
    from pdips.margins.domain import columns_of

    checked = Schema.load(path)
    for name, column in checked.columns.items():
        what = f"{column.n_values} levels" if column.is_categorical else column.span()
        if column.groups:
            what += f" in {len(column.grouped()[0])} groups"
        if column.missing:
            what += ", missing allowed"
        if column.public:
            what += ", public"
        click.echo(f"{name}: {what}")
    if checked.members is None:
        click.echo(f"records a person: at most {checked.records.max_per_person}")
    else:
        own = checked.members
        click.echo(
            f"members a household: at most {own.most}, more: {own.too_many}; "
            f"by the key {own.key!r}"
        )
    for kept in checked.rule:
        click.echo(f"rule: {kept}")
    for total in checked.known_totals():
        sort = "weights" if total.weighted else "records"
        known = "shares" if isnan(total.n_records) else f"{total.n_records:,.0f} {sort}"
        click.echo(
            f"public total of {', '.join(total.columns)}: "
            f"{total.shares.size:,} cells, {known}"
        )
    unbinned = []
    for name, column in checked.columns.items():
        if not (column.is_categorical or column.is_binned):
            unbinned.append(name)
    if unbinned:
        click.echo(
            f"no bins: {', '.join(unbinned)}; mechanism margins needs none, "
            f"most others do"
        )
    else:
        n_cells = columns_of(checked).n_cells
        rules = plural(len(checked.zeros()), "rule")
        click.echo(f"cells: {n_cells:,} before {rules} on impossible ones")
