"""Write the pages of a release: ``card.html`` for users outside, ``report.html`` for its curator.

The card is written from what is published and paid for, ``privacy.json`` and the paid ``evaluation.json``, and nothing
else, so that nothing unpaid can get into it.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pdips.data.schema import Column, Schema
from pdips.errors import InputError, RefusedError
from pdips.release.documents import PaidDocument, PrivacyDocument, RunDocument, home_of
from pdips.report import curator, drawings
from pdips.report.advice import combining, standard_errors
from pdips.report.evaluation_facts import FILE as EVALUATION
from pdips.report.formats import number, percent, plural, price
from pdips.report.judging import agreement
from pdips.report.meaning import belief_bound, odds_factor, power_bound, round_up
from pdips.report.price import MOST_ITEMS, items, price_sum, total
from pdips.report.verdicts import Verdict

if TYPE_CHECKING:
    from jinja2 import Environment

Tell = Callable[[Mapping[str, Verdict]], None]

MODEL_SOURCE = "model_source"
FALSE_POSITIVES = (0.001, 0.01, 0.05, 0.1)
AT_A_GLANCE = 0.05
BELIEFS = (0.01, 0.1, 0.5)


def write_card(public: Path) -> Path:
    """Write the privacy card of a published release.

    Parameters
    ----------
    public : path
        The folder that goes out. Of the files in it only ``privacy.json`` is read, and ``evaluation.json`` where there
        is a paid evaluation; of the synthetic sets only whether they are called ``.csv``.

    Returns
    -------
    path
        ``card.html`` in that folder.

    Raises
    ------
    InputError
        If ``privacy.json`` can't be read, or it or ``evaluation.json`` is damaged or lacks a key.
    RefusedError
        If the release has no guarantee: there is nothing that a card could say to its users.
    """
    return _write(public / "card.html", _card(public, PrivacyDocument.read(public)))


def write_report(confidential: Path, facts: PrivacyDocument, tell: Tell | None = None) -> Path:
    """Write the curator's report.

    Parameters
    ----------
    confidential : path
        The folder that stays inside, with ``run.json``.
    facts : PrivacyDocument
        What ``privacy.json`` holds.
    tell : callable, optional
        Given the verdict of each section. They are read from the confidential table, so they stay inside too.

    Returns
    -------
    path
        ``report.html`` in that folder.

    Raises
    ------
    InputError
        If ``run.json`` can't be read, or either is damaged or lacks a key.
    """
    return _write(confidential / "report.html", _report(confidential, facts, tell))


def rewrite(directory: Path, tell: Tell | None = None) -> list[Path]:
    """Write the pages of a release folder, as far as it has what they are written from.

    A folder with nothing but ``public``, as users outside have it, gets the card only; one of a release that may not be
    published, the report only. Nothing is written unless all pages can be. ``tell`` is that of :func:`write_report`.

    Raises
    ------
    InputError
        If the folder holds no release, or a file is damaged.
    """
    public, confidential = directory / "public", directory / "confidential"
    home = home_of(directory)
    if home is None:
        raise InputError(
            f"{directory} is no folder of a pdips release: it has no public/privacy.json; name the folder that "
            "`pdips synthesize --out` made"
        )
    facts, pages = PrivacyDocument.read(home), {}
    if home == public:
        pages[public / "card.html"] = _card(public, facts)
    if home == confidential or _has_run(confidential):
        pages[confidential / "report.html"] = _report(confidential, facts, tell)
    return [_write(path, page) for path, page in pages.items()]


def rewrite_report(directory: Path) -> Path | None:
    """Write the curator's report of a release folder anew, and nothing else; None if the folder holds no run.

    Raises
    ------
    InputError
        If a file is damaged.
    """
    confidential = directory / "confidential"
    home = home_of(directory)
    if home is None or not _has_run(confidential):
        return None
    return write_report(confidential, PrivacyDocument.read(home))


def _has_run(confidential: Path) -> bool:
    """Whether a folder is of a run, or holds at most the evaluation of a release that came without its run."""
    return confidential.is_dir() and {entry.name for entry in confidential.iterdir()} != {EVALUATION}


def _write(path: Path, page: str) -> Path:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror}") from None
    return path


def _card(public: Path, facts: PrivacyDocument) -> str:
    if facts.privacy.kind == "none":
        raise RefusedError("a release of kind 'none' is never published, so it has no card")
    paid, csv = PaidDocument.beside(public, facts), (public / "synthetic_1.csv").exists()
    return render(
        "card.html.j2",
        facts=facts,
        schema=facts.table_schema,
        settings={
            name: _spell(value)
            for name, value in facts.settings.items()
            if value is not None and name not in (MODEL_SOURCE, "n_sets")
        },
        model=facts.settings.get("model"),
        model_source=facts.settings.get(MODEL_SOURCE),
        columns={name: _values(column) for name, column in facts.table_schema.columns.items()},
        spends=items(facts),
        price_sum=price_sum(facts),
        most_items=MOST_ITEMS,
        adds_up_otherwise=facts.privacy.kind != "pure"
        or any(item.composition != "sequential" for item in facts.spends),
        paid=paid,
        total=total(facts, paid),
        guarantee=_guarantee(facts, paid),
        errors=standard_errors(facts),
        code=_code(facts.table_schema, facts.n_sets, csv=csv),
        split=facts.settings.get("split"),
        suffix="csv" if csv else "parquet",
        advice=combining(facts),
    )


def _report(confidential: Path, facts: PrivacyDocument, tell: Tell | None = None) -> str:
    run = RunDocument.read(confidential)
    paid = PaidDocument.beside(confidential.parent / "public", facts)
    context = curator.context(confidential, facts, run, paid)
    if tell is not None:
        tell(context["verdicts"])
    return render("report.html.j2", **context)


def _guarantee(facts: PrivacyDocument, paid: PaidDocument | None) -> dict[str, Any]:
    """Return what the price of sets and paid evaluation together means, upper bounds rounded up."""
    privacy = facts.privacy
    epsilon, delta = total(facts, paid), privacy.delta
    # A pure loss of epsilon is zero-concentrated with rho = epsilon^2 / 2: Bun and Steinke (2016), proposition 1.4.
    rho = privacy.rho + (paid.privacy.epsilon**2 / 2 if paid else 0.0) if privacy.rho else 0.0
    removing = privacy.neighbours == "add-remove"

    def power(level: float, replacing: bool = False) -> float:
        return power_bound(epsilon, delta, level, rho=rho, replacing=replacing)

    def shown(level: float, replacing: bool = False) -> str:
        return percent(min(1.0, round_up(power(level, replacing))))

    label = "Largest share of true cases that a test can detect, against its false positives: " + ", ".join(
        f"{shown(level)} at {percent(level, short=True)}" for level in FALSE_POSITIVES
    )
    return {
        "factor": number(round_up(odds_factor(epsilon))),
        "factor_twice": number(round_up(odds_factor(2 * epsilon))),
        "false_positives": percent(AT_A_GLANCE, short=True),
        "detection": shown(AT_A_GLANCE),
        "tests": [
            (percent(level, short=True), shown(level), shown(level, True) if removing else None)
            for level in FALSE_POSITIVES
        ],
        "curve": Markup(drawings.roc_bound(power, FALSE_POSITIVES, label)),
        "beliefs": [
            (percent(before, short=True), percent(min(1.0, round_up(belief_bound(epsilon, before)))))
            for before in BELIEFS
        ],
    }


def _values(column: Column) -> dict[str, Any]:
    """Return the levels, or the bounds and bins, of a column in words."""
    if column.levels is not None:
        return {"levels": [str(level) for level in column.levels], "range": None, "edges": None}
    unit = f" {column.unit}" if column.unit else ""
    kind = "whole numbers" if column.integer else "numbers"
    span = f"{kind} from {_spell(column.lower)} to {_spell(column.upper)}{unit}"
    if column.bin_edges:
        span += f", in {plural(column.n_values, 'bin')}"
    elif column.bins:
        about, log = "about " if column.integer else "", " on the log scale" if column.scale == "log" else ""
        span += f", in {plural(column.bins, 'bin')} of {about}equal width{log}"
    return {"levels": None, "range": span, "edges": [_spell(edge) for edge in column.bin_edges or ()]}


def _spell(value: Any) -> str:
    """Return a public setting as a person would write it."""
    if isinstance(value, (list, tuple)):
        return ", ".join(_spell(one) for one in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_spell(one)}" for name, one in value.items())
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _code(schema: Schema, n_sets: int, *, csv: bool) -> str:
    """Return the lines of pandas that read the sets, and text levels as text."""
    options = ""
    if csv:
        looks = re.compile(r"\s*[-+]?(\d|\.\d|inf|nan|true|false)", re.IGNORECASE)
        text = {
            name: "str"
            for name, column in schema.columns.items()
            if any(isinstance(level, str) and looks.match(level) for level in column.levels or ())
        }
        options = ', keep_default_na=False, na_values=[""]' + (f", dtype={text!r}" if text else "")
    suffix = "csv" if csv else "parquet"
    return (
        "import pandas as pd\n"
        f'sets = [pd.read_{suffix}(f"synthetic_{{i}}.{suffix}"{options}) for i in range(1, {n_sets + 1})]\n'
        f'together = pd.concat(sets, keys=range(1, {n_sets + 1}), names=["set", "record"])\n'
    )


@cache
def _environment(folder: Path | None = None) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([*([folder] if folder else []), Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(agreement=agreement, number=number, percent=percent, price=price)
    environment.globals.update(plural=plural)
    return environment


def render(template: str, *, folder: Path | None = None, **context: Any) -> str:
    """Fill one of the templates of this room, or of another folder, which may extend them."""
    return _environment(folder).get_template(template).render(context)
