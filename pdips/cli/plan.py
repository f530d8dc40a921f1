"""The command ``plan``."""

import json
import math
import shlex
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import MODEL, NEIGHBOURS, OPTIONS, SETS, chosen
from pdips.errors import InputError
from pdips.privacy.loss import positive, spell

if TYPE_CHECKING:
    from pdips.calibration.closed_form import Prospect
    from pdips.data.schema import Schema
    from pdips.mechanism import Mechanism

SHOWN, MOST_ROWS, LEVEL, LOUD = 30, 300, 0.05, {"pure": 0.1, "zcdp": 0.3}
"""Lines of each kind on the terminal and on the page; false alarms of an attacker's test; the distance that noise puts
pairs of columns from the table above which it is better to count few chosen ones.
"""


@click.command()
@click.argument("schema_path", metavar="S.toml")
@click.option("--epsilon", default="1", show_default=True, metavar="E", help="Privacy loss in total, over all sets.")
@click.option("--delta", metavar="D", help="Gaussian noise, read at this delta; left out, Laplace noise and delta 0.")
@click.option("--records", "n_records", type=click.IntRange(1, 10**12), metavar="N", help="Public number or guess.")
@click.option("--mechanism", "mechanism_name", metavar="NAME", help="Left out: as `pdips synthesize` chooses.")
@SETS
@NEIGHBOURS
@MODEL
@OPTIONS
@click.option("--html", "html_path", metavar="FILE", help="Write a page with sliders.")
@click.option("--json", "json_path", metavar="FILE", help="Write all errors to this file.")
def plan(
    schema_path: str,
    epsilon: str,
    delta: str | None,
    n_records: int | None,
    mechanism_name: str | None,
    n_sets: int,
    neighbours: str,
    model: str | None,
    options: tuple[str, ...],
    html_path: str | None,
    json_path: str | None,
) -> None:
    """Compute the accuracy of a planned release from public facts: no table is read and nothing is spent."""
    from pdips.calibration.closed_form import fits, prospects
    from pdips.data.schema import Schema
    from pdips.margins.planning import suited
    from pdips.release.documents import write_json
    from pdips.release.folder import output_file

    schema = Schema.load(schema_path)
    why = "as asked for"
    if mechanism_name is None:
        mechanism_name, why = suited(schema, has_model=model is not None)
    if delta is not None:
        options = (*options, "kind=zcdp", f"delta={delta}")
    common = {"epsilon": epsilon, "n_sets": n_sets, "neighbours": neighbours}
    build, settings = chosen(mechanism_name, options, common, model)
    mechanism: Mechanism = build(**settings)
    planned = mechanism.plan(schema)
    target = None if json_path is None else output_file(json_path)
    html = None if html_path is None else output_file(html_path, "--html")
    sliders = "" if html is None else page(mechanism, schema, schema_path, n_records, options)
    found, loss, cap = prospects(planned, n_records), planned.loss, schema.records.max_per_person
    click.echo(f"schema    {len(schema.columns)} columns, at most {cap} record{'s' * (cap > 1)} a {schema.unit}")
    reading = f", delta = {spell(loss.delta)}, rho = {float(loss.rho):.4g}" if loss.rho else ""
    click.echo(f"price     epsilon = {spell(loss.epsilon)}{reading}, {loss.neighbours} neighbours, kind {loss.kind}")
    if loss.is_finite:
        _tell_odds(float(loss.epsilon), float(loss.delta), float(loss.rho))
    click.echo(f"mechanism {mechanism_name}: {why}")
    said = dict[str, list[str]]()
    for name, seconds, unfit in fits(schema, common, n_records):
        told = unfit.removeprefix(f"{name} ") if seconds is None else f"fits; takes {_duration(seconds)}"
        said.setdefault(told, []).append(name)
    for told, those in sorted(said.items(), key=lambda each: not each[0].startswith("fits")):
        click.echo(f"          {', '.join(those)}: {told if len(told) < 110 else told[:107] + '...'}")
    if found and getattr(mechanism, "kind", "") == "pure":
        _tell_gaussian(mechanism, schema, n_records, found)
    if n_records and mechanism_name == "pairs":
        _tell_chosen(mechanism, n_records, found)
    if not found:
        click.echo(f"errors    none told for {mechanism_name}: see pdips calibrate")
    if n_records is None:
        click.echo("records   give --records N, a public number or guess, for shares, means and coefficients")
    for kind in ("margin", "sum", "mean", "coefficient"):
        _tell(kind, [each for each in found if each.kind == kind], n_records, schema)
    _tell_groups([each for each in found if each.kind == "margin"])
    words = ["--schema", schema_path, "--mechanism", mechanism_name, "--epsilon", epsilon]
    words += ["--sets", str(n_sets)] * (n_sets > 1) + ["--neighbours", neighbours] * (neighbours != "replace-one")
    words += ["--model", str(model)] * (model is not None) + [part for each in options for part in ("--option", each)]
    click.echo(f"run       pdips synthesize TABLE {shlex.join(words)} --ledger TABLE.sqlite --out DIR")
    if target is not None:
        rows = [asdict(each) | {"standard_error": each.standard_error} for each in found]
        write_json(target, {"rows": [{k: v for k, v in row.items() if k != "parts"} for row in rows]})
    if html is not None:
        html.write_text(sliders, encoding="utf-8")
        click.echo(f"page      {html}")


def page(
    mechanism: "Mechanism", schema: "Schema", schema_path: str, n_records: int | None, options: Sequence[str] = ()
) -> str:
    """Return the page with sliders, which works out the errors of a mechanism at other settings by itself."""
    from pdips.calibration.closed_form import GROUPS, page_form
    from pdips.mechanism import LaplaceOrGaussian
    from pdips.report.pages import render

    kinds = {"pure": {"kind": "pure"}, "zcdp": {"kind": "zcdp"}} if isinstance(mechanism, LaplaceOrGaussian) else {}
    forms = dict[str, Any]()
    for kind, chosen_kind in (kinds or {"pure": {}}).items():
        for relation in mechanism.relations:
            with suppress(InputError):
                given = replace(mechanism, neighbours=relation, **chosen_kind)  # type: ignore[arg-type]
                other = given.settled(schema)
                asked = given.settings()
                settled = [f"{key}={value}" for key, value in other.settings().items() if value != asked[key]]
                form = page_form(other, schema, n_records, MOST_ROWS)
                forms[f"{kind} {relation}"] = form | {"options": settled}
    if not any(form["rows"] for form in forms.values()):
        raise InputError(f"--html: the errors of {mechanism.name} aren't known in closed form; take steps or pairs")
    data = {
        "forms": forms,
        "columns": list(schema.columns),
        "n": n_records,
        "groups": GROUPS,
        "command": f"pdips synthesize TABLE --schema {shlex.quote(schema_path)} --mechanism {mechanism.name}",
        "sets": mechanism.n_sets,
        "cap": schema.records.max_per_person,
        "options": [each for each in options if each.split("=")[0] not in ("kind", "delta")],
        "start": {
            "epsilon": float(positive(mechanism.epsilon, "epsilon")),
            "delta": float(positive(getattr(mechanism, "delta", "1e-6"), "delta")),
            "kind": getattr(mechanism, "kind", "pure"),
            "neighbours": mechanism.neighbours,
        },
    }
    return render(
        "plan.html.j2",
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        title=schema.title or "a table",
        unit=schema.unit,
        mechanism=mechanism.name,
        n=n_records,
    )


def _tell_gaussian(mechanism: "Mechanism", schema: "Schema", n_records: int | None, found: list["Prospect"]) -> None:
    """Say how much quieter Gaussian noise would be, where it would be by half."""
    from pdips.calibration.closed_form import prospects

    with suppress(InputError, statistics.StatisticsError):
        other = prospects(replace(mechanism, kind="zcdp").plan(schema), n_records)  # type: ignore[call-arg]
        now, then = (statistics.median(e.standard_error for e in r if e.kind == "margin") for r in (found, other))
        if then < now / 2:
            click.echo(
                f"noise     --delta 1e-6 (Gaussian) would take the median error of counts from {now:.3g} to {then:.3g}"
            )


def _tell_chosen(mechanism: "Mechanism", n_records: int, found: list["Prospect"]) -> None:
    """Say where noise alone puts all pairs of columns far from the table, and when a few chosen ones are enough."""
    pairs, settings = [each for each in found if each.kind == "margin" and len(each.columns) == 2], mechanism.settings()
    few = 2 * len({name for each in pairs for name in each.columns})
    off = 0.4 * statistics.fmean(each.cells * each.standard_error for each in pairs) / n_records if pairs else 0
    if off > LOUD[settings["kind"]]:
        told = f"pairs     noise alone puts pairs of columns {min(off, 1):.2f} off (total variation distance)"
        some = 2 * few <= len(pairs) and settings["sets"] == "fitted" and not settings["also"]
        click.echo(f"{told}: --option chosen={few} counts those that say most" if some else told)


def _tell_odds(epsilon: float, delta: float, rho: float) -> None:
    from pdips.report.card import odds_factor, power_bound

    power = power_bound(epsilon, delta, LEVEL, rho=rho)
    odds = "" if delta else f"odds change by a factor of at most {odds_factor(epsilon):.3g}; "
    click.echo(f"attacker  {odds}a test with {LEVEL:.0%} false alarms detects at most {power:.1%} of true cases")


def _duration(seconds: float) -> str:
    steps = ((20, "seconds"), (120, "about a minute"), (1200, "minutes"), (7200, "about an hour"))
    return next((word for most, word in steps if seconds < most), "hours or more")


def _tell(kind: str, rows: Sequence["Prospect"], n_records: int | None, schema: "Schema") -> None:
    if not rows:
        return
    what = {"margin": "count", "coefficient": "standardised coefficient"}.get(kind, kind)
    click.echo(f"{kind + 's':<9} standard error of a {what} that noise gives, by itself")
    for each in sorted(rows, key=lambda each: (len(each.columns), -each.standard_error))[:SHOWN]:
        share = f" ({each.standard_error / n_records:.2%} of n)" if kind == "margin" and n_records else ""
        if kind == "mean" and not (column := schema.columns[each.columns[0]]).is_categorical:
            share = f" ({each.standard_error / (float(column.upper or 0) - float(column.lower or 0)):.1%} of its range)"
        unit = "" if kind == "coefficient" or not each.unit else f" {each.unit}"
        click.echo(f"          {' x '.join(each.columns):<40} {each.standard_error:.3g}{unit}{share}")
    if len(rows) > SHOWN:
        median = statistics.median(each.standard_error for each in rows)
        click.echo(f"          ... and {len(rows) - SHOWN} more (--json has all); median of all {median:.3g}")


def _tell_groups(rows: Sequence["Prospect"]) -> None:
    from pdips.calibration.closed_form import GROUPS

    for size in (1, 2):
        errors = [each.standard_error for each in rows if len(each.columns) == size]
        if errors:
            told = ", ".join(f"{g:,}: {_relative(statistics.median(errors) / g)}" for g in GROUPS)
            worst = ", ".join(f"{g:,}: {_relative(max(errors) / g)}" for g in GROUPS)
            click.echo(f"groups    of {'one column' if size == 1 else 'two columns'}, median {told}; worst {worst}")


def _relative(share: float) -> str:
    return "noise" if share > 1 or math.isnan(share) else f"{share:.1%}"
