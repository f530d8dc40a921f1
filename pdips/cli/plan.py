"""The command ``plan``."""

import json
import math
import shlex
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import (
    ANALYSES,
    DELTA,
    MODEL,
    NEIGHBOURS,
    OPTIONS,
    SETS,
    chosen,
    epsilon_in_words,
    kind_in_words,
    with_usual_sets,
)
from pdips.errors import InputError
from pdips.privacy.delta import size_of_delta, suggested_delta
from pdips.privacy.loss import (
    PRICE_DIGITS,
    PrivacyLoss,
    also_sentence,
    exact,
    positive,
    spell,
)
from pdips.privacy.rho import rounded_up
from pdips.report.formats import plural

if TYPE_CHECKING:
    from pdips.analyses.composite import WithAnalyses
    from pdips.calibration.closed_form import Prospect
    from pdips.data.schema import Schema
    from pdips.mechanism import Mechanism
    from pdips.privacy.plan import Plan

SHOWN = 30
MOST_ROWS = 300
LEVEL = 0.05
LOUD = {"pure": 0.1, "zcdp": 0.3}
LONGEST_REASON = 110
CHOSEN_LATER = (
    "which ones are counted is chosen by noisy answers, so their errors are known "
    "after the release alone; several sets differ by what stays unsure"
)
NEAR = 0.1
MISSING = (0.5, 0.9)
UP_THE_RANGE = (0.1, 0.01)
"""Lines of each kind on the terminal and on the page; false alarms of an attacker's
test; the distance that noise puts pairs of columns from the table above which it is
better to count few chosen ones; letters of why a mechanism doesn't fit; half an
interval of a standardised coefficient that is short; shares of missing records, and how
far up its range a mean may lie, at which errors are told.
"""


@click.command()
@click.argument("schema_path", metavar="S.toml")
@click.option(
    "--epsilon",
    default="1",
    show_default=True,
    metavar="E",
    help="Privacy loss in total, over all sets.",
)
@DELTA
@click.option(
    "--records",
    "n_records",
    type=click.IntRange(1, 10**12),
    metavar="N",
    help="Public number or guess.",
)
@click.option(
    "--mechanism",
    "mechanism_name",
    metavar="NAME",
    help="Left out: as `pdips synthesize` chooses.",
)
@SETS
@NEIGHBOURS
@MODEL
@ANALYSES
@OPTIONS
@click.option(
    "--want",
    "wants",
    multiple=True,
    metavar="WANT",
    help='Find the epsilon for "age x sex within .005" (a share of N, or records); '
    "repeatable.",
)
@click.option("--html", "html_path", metavar="FILE", help="Write a page with sliders.")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write all errors to this file."
)
def plan(**options: Any) -> None:
    """Compute the accuracy of a planned release from public facts: no table is read and
    nothing is spent.
    """
    from pdips.calibration.accuracy import answer
    from pdips.release.folder import output_file

    asked = PlanOptions(**options)
    planned = asked.planned()
    target = None if asked.json_path is None else output_file(asked.json_path)
    html = None if asked.html_path is None else output_file(asked.html_path, "--html")
    text = ""
    if html is not None:
        text = page(
            planned.mechanism,
            planned.schema,
            asked.schema_path,
            asked.n_records,
            asked.options,
        )
    if asked.wants:
        wanted = answer(planned.mechanism, planned.schema, asked.wants, asked.n_records)
        click.echo(wanted)
    planned.tell()
    if target is not None:
        _write_rows(target, planned.prospects)
    if html is not None:
        html.write_text(text, encoding="utf-8")
        click.echo(f"page      {html}")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of ``pdips plan``."""

    schema_path: str
    epsilon: str
    delta: str | None
    n_records: int | None
    mechanism_name: str | None
    n_sets: int | None
    neighbours: str
    model: str | None
    options: tuple[str, ...]
    wants: tuple[str, ...]
    html_path: str | None
    json_path: str | None
    analyses: tuple[str, ...] = ()

    @property
    def common(self) -> dict[str, Any]:
        """The settings that all mechanisms have."""
        common: dict[str, Any] = {
            "epsilon": self.epsilon,
            "neighbours": self.neighbours,
        }
        if self.n_sets is not None:
            common["n_sets"] = self.n_sets
        return common

    def planned(self) -> "PlannedRelease":
        """Return the plan that is asked for, and its errors."""
        from pdips.data.schema import Schema
        from pdips.margins.planning import suited

        schema = Schema.load(self.schema_path)
        declared = [*schema.analysis, *self.analyses]
        schema = schema.model_copy(update={"analysis": ()})
        if declared and (self.wants or self.html_path):
            raise InputError(
                "--want and --html are for plans of tables alone: leave the analyses "
                "out"
            )
        name = self.mechanism_name
        why = "as asked for"
        if name is None:
            name, why, _ = suited(schema, has_model=self.model is not None)
        asked = self.common
        if self.delta is not None:
            asked["delta"] = self.delta
        build, settings = chosen(name, self.options, asked, self.model)
        mechanism: Mechanism = with_usual_sets(build(**settings), self.n_sets, schema)
        planned = PlannedRelease(
            options=self, schema=schema, name=name, why=why, mechanism=mechanism
        )
        return planned.with_analyses(declared) if declared else planned

    def command(self, name: str, n_sets: int) -> list[str]:
        """Return the options of the command that makes the release."""
        words = ["--schema", self.schema_path, "--mechanism", name]
        words += ["--epsilon", self.epsilon]
        if self.delta is not None:
            words += ["--delta", self.delta]
        words += ["--sets", str(n_sets)]
        if self.neighbours != "replace-one":
            words += ["--neighbours", self.neighbours]
        if self.model is not None:
            words += ["--model", self.model]
        for option in self.options:
            words += ["--option", option]
        for analysis in self.analyses:
            words += ["--analysis", analysis]
        return words


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """A mechanism with its plan, and the errors of its noise."""

    options: PlanOptions
    schema: "Schema"
    name: str
    why: str
    mechanism: "Mechanism"
    # what analyses have of the price, where some are named
    whole: "WithAnalyses | None" = None

    def with_analyses(self, declared: "list[Any]") -> "PlannedRelease":
        """Return the release with analyses: of its budget the tables have a part."""
        from pdips.analyses.declarations import planned_with

        whole = planned_with(self.mechanism, declared, self.schema)
        return replace(self, mechanism=whole.tables, whole=whole)

    @cached_property
    def plan(self) -> "Plan":
        """Of the tables, by which their errors are known."""
        return self.mechanism.plan(self.schema)

    @cached_property
    def priced(self) -> "Plan":
        """Of the whole release."""
        return self.plan if self.whole is None else self.whole.plan(self.schema)

    @cached_property
    def prospects(self) -> "list[Prospect]":
        """The errors of the tables."""
        from pdips.calibration.closed_form import prospects

        return prospects(self.plan, self.options.n_records)

    def tell(self) -> None:
        """Print the price, the mechanisms that fit, the errors and the commands."""
        n_records = self.options.n_records
        rows = self.prospects
        loss = self.priced.loss
        self._tell_price()
        self._tell_mechanisms()
        if self.whole is not None:
            for said in self.whole.forecasts(self.priced, n_records):
                click.echo(f"analysis  {said}")
        if rows and getattr(self.mechanism, "kind", "") == "pure":
            _tell_gaussian(self.mechanism, self.plan, n_records, rows)
        if n_records and getattr(self.plan.design, "pairs", False):
            _tell_chosen(self.mechanism, n_records, rows, LOUD[loss.kind])
        has_choice = any(step.law == "exponential" for step in self.plan.steps)
        if has_choice and getattr(self.plan.design, "pairs", None) is False:
            click.echo(f"pairs     {CHOSEN_LATER}")
        if not rows:
            click.echo(f"errors    none known in closed form for {self.name}")
        if n_records is None:
            click.echo(
                "records   give --records N, a public number or guess, for "
                "shares, means and coefficients"
            )
        for kind in ("margin", "sum", "mean", "coefficient"):
            _tell(kind, _of_kind(rows, kind), n_records, self.schema)
        _tell_answers(_of_kind(rows, "coefficient"), loss)
        _tell_missing(rows, self.schema)
        _tell_skew(_of_kind(rows, "mean"), self.schema)
        _tell_levels(self.mechanism, self.schema, rows)
        _tell_groups(_of_kind(rows, "margin"))
        epsilon = exact(self.options.epsilon, "epsilon")
        words = self.options.command(self.name, self.mechanism.n_sets)
        _tell_commands(words, loss, max(loss.epsilon, epsilon))

    def _tell_price(self) -> None:
        schema = self.schema
        loss = self.priced.loss
        records = plural(schema.records.max_per_person, "record")
        n_columns = len(schema.columns)
        click.echo(f"schema    {n_columns} columns, at most {records} a {schema.unit}")
        is_gaussian = any(step.law == "gaussian" for step in self.priced.steps)
        rho = ""
        if loss.kind == "zcdp":
            rho = f" (rho = {spell(rounded_up(loss.rho, PRICE_DIGITS))})"
        click.echo(
            f"price     {epsilon_in_words(loss)}{rho}, {loss.neighbours} neighbours, "
            f"{kind_in_words(loss.kind, is_noisy=is_gaussian)}"
        )
        if loss.kind == "pure":
            click.echo(f"also      {also_sentence(loss.epsilon, loss.rho)}")
        if loss.is_finite:
            _tell_odds(float(loss.epsilon), float(loss.delta), float(loss.rho))
            _tell_delta(loss, self.options.n_records)

    def _tell_mechanisms(self) -> None:
        """Say which mechanism is planned, and which others fit, those together that
        have the same to be said of them.
        """
        from pdips.calibration.closed_form import fits

        click.echo(f"mechanism {self.name}: {self.why}")
        names_of: dict[str, list[str]] = {}
        options = self.options
        for name, seconds, unfit in fits(
            self.schema, options.common, options.n_records
        ):
            said = unfit.removeprefix(f"{name} ")
            if seconds is not None:
                said = f"fits; takes {_duration(seconds)}"
            names_of.setdefault(said, []).append(name)
        for said in sorted(names_of, key=lambda said: not said.startswith("fits")):
            line = said
            if len(said) >= LONGEST_REASON:
                line = f"{said[: LONGEST_REASON - 3]}..."
            click.echo(f"          {', '.join(names_of[said])}: {line}")


def _of_kind(rows: Sequence["Prospect"], kind: str) -> "list[Prospect]":
    return [row for row in rows if row.kind == kind]


def _write_rows(target: Path, prospects: "list[Prospect]") -> None:
    from pdips.release.documents import write_json

    rows = []
    for prospect in prospects:
        row = asdict(prospect)
        del row["parts"]
        rows.append({**row, "standard_error": prospect.standard_error})
    write_json(target, {"rows": rows})


def page(
    mechanism: "Mechanism",
    schema: "Schema",
    schema_path: str,
    n_records: int | None,
    options: Sequence[str] = (),
) -> str:
    """Return the page with sliders, which works out the errors of a mechanism at other
    settings by itself.
    """
    from pdips.calibration.closed_form import GROUPS
    from pdips.report.pages import render

    delta = getattr(mechanism, "delta", None) or suggested_delta(n_records)
    forms = _forms(mechanism, schema, n_records, delta)
    if not any(form["rows"] for form in forms.values()):
        raise InputError(
            f"--html: the errors of {mechanism.name} aren't known in "
            f"closed form; take margins"
        )
    start = {
        "epsilon": float(positive(mechanism.epsilon, "epsilon")),
        "delta": float(positive(delta, "delta")),
        "kind": getattr(mechanism, "kind", "pure"),
        "neighbours": mechanism.neighbours,
    }
    path = shlex.quote(schema_path)
    command = f"pdips synthesize TABLE --schema {path} --mechanism {mechanism.name}"
    data = {
        "forms": forms,
        "columns": list(schema.columns),
        "unit": schema.unit,
        "n": n_records,
        "groups": GROUPS,
        "command": command,
        "total": "pdips ledger set-total TABLE.sqlite",
        "sets": mechanism.n_sets,
        "cap": schema.records.max_per_person,
        "options": [option for option in options if option.split("=")[0] != "delta"],
        "start": start,
    }
    return render(
        "plan.html.j2",
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        title=schema.title or "a table",
        unit=schema.unit,
        mechanism=mechanism.name,
        n=n_records,
    )


def _forms(
    mechanism: "Mechanism", schema: "Schema", n_records: int | None, delta: Any
) -> dict[str, dict[str, Any]]:
    """Return the closed forms of the errors, by noise and neighbours, as far as the
    mechanism has them.
    """
    from pdips.mechanism import LaplaceOrGaussian

    noise_of_kind: dict[str, dict[str, Any]] = {"pure": {}}
    if isinstance(mechanism, LaplaceOrGaussian):
        noise_of_kind = {"pure": {"delta": None}, "zcdp": {"delta": delta}}
    forms: dict[str, dict[str, Any]] = {}
    for kind, noise in noise_of_kind.items():
        for relation in mechanism.offers.relations:
            with suppress(InputError):
                other = replace(mechanism, neighbours=relation, **noise)
                forms[f"{kind} {relation}"] = _form(other, schema, n_records)
    return forms


def _form(
    mechanism: "Mechanism", schema: "Schema", n_records: int | None
) -> dict[str, Any]:
    """Return the closed form of a mechanism's errors, with the settings that it would
    fill in by itself.
    """
    from pdips.calibration.closed_form import page_form

    settled = mechanism.settled(schema)
    asked = mechanism.settings()
    filled_in = [
        f"{name}={value}"
        for name, value in settled.settings().items()
        if value != asked[name]
    ]
    form = page_form(settled, schema, n_records, MOST_ROWS)
    return {**form, "options": filled_in}


def _tell_gaussian(
    mechanism: "Mechanism",
    plan: "Plan",
    n_records: int | None,
    rows: Sequence["Prospect"],
) -> None:
    """Say how much quieter Gaussian noise would be, where it would be by half."""
    from pdips.calibration.closed_form import prospects

    delta = suggested_delta(n_records)
    with suppress(InputError, statistics.StatisticsError):
        gaussian: Any = replace(mechanism, delta=delta)  # type: ignore[call-arg]
        other = gaussian.plan(plan.schema)
        other_rows = prospects(other, n_records)
        now = _median_error(_of_kind(rows, "margin"))
        then = _median_error(_of_kind(other_rows, "margin"))
        if then < now / 2:
            click.echo(
                f"noise     --delta {float(delta):g} (Gaussian) would take the median "
                f"error of counts from {now:.3g} to {then:.3g}"
            )


def _median_error(rows: Sequence["Prospect"]) -> float:
    return statistics.median(row.standard_error for row in rows)


def _tell_commands(words: list[str], loss: PrivacyLoss, epsilon: Fraction) -> None:
    """Print the commands that make the release, in the order in which they are run.

    A ledger takes no loss that bounds nothing.
    """
    run = f"pdips synthesize TABLE {shlex.join(words)}"
    if not loss.is_finite:
        click.echo(f"run       {run} --out DIR")
        return
    total = ["TABLE.sqlite", spell(epsilon)]
    if loss.delta:
        total += ["--delta", spell(loss.delta)]
    if loss.neighbours != "replace-one":
        total += ["--neighbours", loss.neighbours]
    click.echo(
        "commands  in this order; leave the first out where the ledger has a total"
    )
    click.echo(f"total     pdips ledger set-total {shlex.join(total)}")
    click.echo(f"run       {run} --ledger TABLE.sqlite --out DIR")


def _tell_delta(loss: PrivacyLoss, n_records: int | None) -> None:
    """Say whether delta is small enough, by the rule of the report."""
    said = {
        "unknown": "give --records N to compare delta with the number of records",
        "small": "at most one over the square of the number of records: small enough",
        "large": "above one over the square of the number of records",
        "too large": "at least one over the number of records, which allows a whole "
        "record to be published",
    }
    size = size_of_delta(loss.delta, n_records)
    if size == "none":
        return
    more = ""
    if size in ("large", "too large"):
        more = f"; take --delta {float(suggested_delta(n_records)):g}"
    click.echo(f"delta     {said[size]}{more}")


def _tell_chosen(
    mechanism: "Mechanism", n_records: int, rows: Sequence["Prospect"], loud: float
) -> None:
    """Say where noise alone puts all pairs of columns far from the table, and when a
    few chosen ones are enough.
    """
    pairs = [row for row in _of_kind(rows, "margin") if len(row.columns) == 2]
    if not pairs:
        return
    # sqrt(2 / pi) / 2: half the mean of absolute values is the distance
    errors = [row.cells * row.standard_error for row in pairs]
    off = 0.4 * statistics.fmean(errors) / n_records
    if off <= loud:
        return
    said = (
        f"pairs     noise alone puts pairs of columns {min(off, 1):.2f} off "
        f"(total variation distance)"
    )
    settings = mechanism.settings()
    few = 2 * len({name for row in pairs for name in row.columns})
    if not settings["also"] and 2 * few <= len(pairs):
        said += ": --option measure=chosen counts those that say most"
    click.echo(said)


def _tell_odds(epsilon: float, delta: float, rho: float) -> None:
    from pdips.report.card import odds_factor, power_bound

    power = power_bound(epsilon, delta, LEVEL, rho=rho)
    odds = ""
    if not delta:
        odds = f"odds change by a factor of at most {odds_factor(epsilon):.3g}; "
    click.echo(
        f"attacker  {odds}a test with {LEVEL:.0%} false alarms detects at "
        f"most {power:.1%} of true cases"
    )


def _duration(seconds: float) -> str:
    steps = (
        (20, "seconds"),
        (120, "about a minute"),
        (1200, "minutes"),
        (7200, "about an hour"),
    )
    return next((word for most, word in steps if seconds < most), "hours or more")


def _tell(
    kind: str, rows: Sequence["Prospect"], n_records: int | None, schema: "Schema"
) -> None:
    if not rows:
        return
    names = {"margin": "count", "coefficient": "standardised coefficient"}
    what = names.get(kind, kind)
    click.echo(
        f"{kind + 's':<9} standard error of a {what} that noise gives, by itself"
    )
    worst_first = sorted(rows, key=lambda row: (len(row.columns), -row.standard_error))
    for row in worst_first[:SHOWN]:
        unit = ""
        if row.unit and kind != "coefficient":
            unit = f" {row.unit}"
        columns = " x ".join(row.columns)
        share = _share(row, n_records, schema)
        click.echo(f"          {columns:<40} {row.standard_error:.3g}{unit}{share}")
    if len(rows) > SHOWN:
        click.echo(
            f"          ... and {len(rows) - SHOWN} more (--json has all); "
            f"median of all {_median_error(rows):.3g}"
        )


def _share(row: "Prospect", n_records: int | None, schema: "Schema") -> str:
    """Return the error of a count as a share of the records, and that of a mean as one
    of its column's range.
    """
    error = row.standard_error
    if row.kind == "margin" and n_records:
        return f" ({error / n_records:.2%} of n)"
    if row.kind != "mean":
        return ""
    column = schema.columns[row.columns[0]]
    if not column.is_categorical:
        width = float(column.upper or 0) - float(column.lower or 0)
        return f" ({error / width:.1%} of its range)"
    return ""


def _tell_answers(rows: Sequence["Prospect"], loss: PrivacyLoss) -> None:
    """Say of how many coefficients noise leaves a short interval, and which epsilon
    would leave one of half of them: Laplace noise is in proportion to 1 / epsilon.
    """
    if not rows:
        return
    z = statistics.NormalDist().inv_cdf(0.975)
    halves = [z * row.standard_error for row in rows]
    near = sum(half <= NEAR for half in halves)
    said = (
        f"answers   {near} of {len(rows)} standardised coefficients have a 95 % "
        f"interval of +- {NEAR} or less by the noise"
    )
    median = statistics.median(halves)
    if median > NEAR and loss.kind == "pure":
        enough = float(loss.epsilon) * median / NEAR
        said += f"; half of them would at about epsilon {_whole(enough)}"
    click.echo(said)


def _tell_missing(rows: Sequence["Prospect"], schema: "Schema") -> None:
    """Say what missing values do to means and coefficients: the noise stays, and fewer
    records share it.
    """
    moments = [row for row in rows if row.kind in ("mean", "coefficient")]
    told = {name for row in moments for name in row.columns}
    gaps = [name for name in schema.columns if name in told]
    gaps = [name for name in gaps if schema.columns[name].missing]
    if not gaps:
        return
    times = " and ".join(f"{1 / (1 - share):.0f} at {share:.0%}" for share in MISSING)
    click.echo(
        f"missing   errors of means and coefficients are of complete columns; with a "
        f"share s missing they are 1 / (1 - s) times as large, {times}: "
        f"{', '.join(gaps)}"
    )


def _whole(value: float) -> str:
    """Return a number to two digits, without a power of ten where it is large."""
    return f"{value:.2g}" if value < 10 else f"{float(f'{value:.2g}'):,.0f}"


def _tell_skew(rows: Sequence["Prospect"], schema: "Schema") -> None:
    """Say what the error of a mean comes to where the mean lies far down its range, as
    those of skewed columns do.
    """
    shares = {}
    for row in rows:
        column = schema.columns[row.columns[0]]
        if not column.is_categorical:
            width = float(column.upper or 0) - float(column.lower or 0)
            shares[row.columns[0]] = row.standard_error / width
    if not shares:
        return
    name = max(shares, key=shares.__getitem__)
    relative = [
        f"{_whole(100 * shares[name] / far)}% of a mean {far:.0%} up the range"
        for far in UP_THE_RANGE
    ]
    click.echo(
        "skew      the error of a mean is in proportion to the range, and so less with "
        f"nearer public bounds: of {name} it is {', '.join(relative)}"
    )


def _tell_levels(
    mechanism: "Mechanism", schema: "Schema", rows: Sequence["Prospect"]
) -> None:
    """Say what wider levels of the column that has most would buy."""
    from pdips.calibration.wider_levels import WiderLevels

    wider = WiderLevels.of(mechanism, schema, rows)
    if wider is not None:
        click.echo(
            f"levels    {wider.n_merged} wider levels of {wider.column} in place of "
            f"{wider.n_levels}: errors of its counts {wider.merged:.2f} of those of "
            f"levels added up afterwards, of others {wider.others:.2f}"
        )


def _tell_groups(rows: Sequence["Prospect"]) -> None:
    for size, columns in ((1, "one column"), (2, "two columns")):
        errors = [row.standard_error for row in rows if len(row.columns) == size]
        if errors:
            median = _of_groups(statistics.median(errors))
            worst = _of_groups(max(errors))
            click.echo(f"groups    of {columns}, median {median}; worst {worst}")


def _of_groups(error: float) -> str:
    """Return an error relative to groups of several sizes."""
    from pdips.calibration.closed_form import GROUPS

    return ", ".join(f"{size:,}: {_relative(error / size)}" for size in GROUPS)


def _relative(share: float) -> str:
    return "noise" if share > 1 or math.isnan(share) else f"{share:.1%}"
