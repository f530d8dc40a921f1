"""One door to a public folder: a question in one grammar, answered by the best source
that the folder has.
"""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import ndtri

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError, UselessWarning, hint
from pdips.outside.answer import POSTERIOR, PRODUCTS, Answer
from pdips.outside.beyond_caps import with_what_caps_hide
from pdips.outside.cells import Missing
from pdips.outside.hidden_tails import with_hidden_tails
from pdips.outside.interval_counts import of_intervals
from pdips.outside.noisy_margins import NoisyMargins
from pdips.outside.questions import (
    Expression,
    Formula,
    Question,
    Summary,
    is_number,
    read_question,
)
from pdips.outside.regression import OPEN, Target
from pdips.outside.sets.analyses import Family, regression, summary
from pdips.outside.sets.answers import of_sets
from pdips.outside.sets.records import SetRecords
from pdips.privacy.loss import choice
from pdips.release.documents import PrivacyDocument, answered_beside
from pdips.release.opening import PublishedRelease, open
from pdips.release.public_draws import contradiction
from pdips.report.coefficients import entries

OF_ONE_LEVEL = re.compile(r"^\s*(?P<name>\w+)\[['\"](?P<level>[^'\"]+)['\"]\]\s*~")
FAMILY_LINE = "family = "
OTHER_LINK = "link = "
BAMBI_FAMILIES: Mapping[str, Family] = {
    "gaussian": "gaussian",
    "bernoulli": "binomial",
    "binomial": "binomial",
    "poisson": "poisson",
}
BEFORE_LOOKING = (
    "intervals are of the population if the question was fixed before anyone looked at "
    "the release"
)
CONTRADICTED = (
    "the noisy answers contradict the model: {0.reason} (so far off in {0.share:.2g} "
    "of releases, if it were right). The intervals are not 95 %"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicQuestion:
    """A question with its settings.

    Parameters
    ----------
    text : str
    question : Formula or Summary, optional
        None where it is in another grammar, in which a posterior may have been asked.
    family : {"gaussian", "binomial", "poisson"}
    target : {"population", "table"}
    missing : {"level", "drop"}
    weights : str, optional
        A column of numbers: how many members of the population a record stands for.
    """

    text: str
    question: Question | None
    family: Family
    target: Target
    missing: Missing
    weights: str | None = None


def ask(
    public: PublishedRelease,
    question: str,
    *,
    family: str | None = None,
    target: Target = "population",
    missing: Missing = "level",
    weights: str | None = None,
) -> Answer:
    """Answer a question from a public folder: see
    :meth:`pdips.release.opening.PublishedRelease.ask`.
    """
    if family is not None:
        choice(family, tuple(BAMBI_FAMILIES), "family")
    choice(target, ("table", "population"), "target")
    choice(missing, ("level", "drop"), "missing")
    _check_unchanged(public)
    own = BAMBI_FAMILIES[family or "gaussian"]
    asked = _read(public, question, own, target, missing)
    if family is None and not isinstance(asked.question, Summary):
        asked = replace(asked, family=_published_family(public, asked))
    if weights is not None:
        asked = replace(asked, weights=_weights(public, asked, weights))
    refusals = dict[str, str]()
    left_open: Answer | None = None
    for name, source in SOURCES.items():
        try:
            # an answer says by itself what is left open
            with warnings.catch_warnings(action="ignore", category=UselessWarning):
                answer = _within_bounds(public, asked, source(public, asked))
        except InputError as refusal:
            refusals[name] = str(refusal)
            continue
        if not answer.is_open:
            return _told(answer, left_open)
        if left_open is None or answer.n_open < left_open.n_open:
            left_open = answer
    if left_open is None:
        raise InputError(_refusal(public, asked, refusals))
    return _told(left_open, None)


def _within_bounds(
    public: PublishedRelease, asked: PublicQuestion, answer: Answer
) -> Answer:
    """Return an answer whose intervals end where the mean of a column must."""
    question = asked.question
    if not isinstance(question, Summary) or question.kind != "mean":
        return answer
    of = question.of[0]
    column = public.privacy.table_schema.columns.get(of.text)
    if not of.is_plain or column is None or not is_number(column):
        return answer
    ends = column.levels or (column.lower, column.upper)
    numbers = [float(end) for end in ends if end is not None]
    if len(numbers) < 2:
        return answer
    return replace(answer, limits=(min(numbers), max(numbers)))


def _published_family(public: PublishedRelease, asked: PublicQuestion) -> Family:
    """Return the family of a published posterior of this question; else that of least
    squares.
    """
    try:
        published = [*_analyses(public)]
    except InputError:  # a folder was changed: the source that reads it says so
        return asked.family
    for release, written in published:
        family = BAMBI_FAMILIES.get(_family_of(written.splitlines()[1:]))
        if family is None:
            continue
        schema = release.privacy.table_schema
        if _wanted(written, schema, replace(asked, family=family)) is not None:
            return family
    return asked.family


def _told(answer: Answer, left_open: Answer | None) -> Answer:
    """Return an answer with what is to be said of its source."""
    remarks = list(answer.remarks)
    if left_open is not None:
        remarks.append(f"the noise leaves this open in the {left_open.source}")
    if answer.is_open:
        remarks.append(OPEN if not answer.is_of_prior else "a prior has a part in this")
    return replace(answer, remarks=tuple(remarks))


def _check_unchanged(public: PublishedRelease) -> None:
    """Refuse a folder that was edited since it was opened, and verified."""
    if PrivacyDocument.read(public.home) != public.privacy:
        raise InputError(
            f"{public.home} was changed since it was opened; open it again"
        )


def _weights(public: PublishedRelease, asked: PublicQuestion, name: str) -> str:
    """Return the column of weights, or refuse what can't be weighted."""
    columns = public.privacy.table_schema.columns
    if name not in columns or not is_number(columns[name]) or columns[name].missing:
        raise InputError(
            f"weights must name a column of numbers that is never missing"
            f"{hint(name, columns)}, and {name!r} is none"
        )
    if (columns[name].lower or 0.0) < 0:
        raise InputError(f"weights can't be below 0, and {name!r} may be")
    question = asked.question
    kind = question.kind if isinstance(question, Summary) else ""
    if kind in ("quantile", "correlation"):
        raise InputError(f"a {kind} takes no weights: mean, share, total, count do")
    return name


def _read(
    public: PublishedRelease,
    text: str,
    family: Family,
    target: Target,
    missing: Missing,
) -> PublicQuestion:
    """Read a question. One that isn't in the grammar may be that of a posterior."""
    schema = public.privacy.table_schema
    question = None
    try:
        question = read_question(text, schema)
    except InputError:
        if not isinstance(text, str) or not any(
            _is_same_text(text, each.splitlines()[0]) for _, each in _analyses(public)
        ):
            raise
    return PublicQuestion(
        text=text, question=question, family=family, target=target, missing=missing
    )


def _refusal(
    public: PublishedRelease, asked: PublicQuestion, refusals: Mapping[str, str]
) -> str:
    """Return why no source answers, and what the office may do."""
    reasons = "; ".join(f"{name}: {said}" for name, said in refusals.items())
    if isinstance(asked.question, Formula):
        analysis = f"--analysis {asked.text!r}"
        advice = (
            f"a release with `{analysis}`, or `pdips answer TABLE DIR {analysis}` "
            f"beside this one"
        )
    else:
        columns = ",".join(asked.question.columns) if asked.question else ""
        advice = (
            f"a release of several sets, or one by `margins` with `also={columns}`,"
        )
    within = _at_best(public, asked)
    return f"not measured: {advice} would answer this{within} ({reasons})"


def _at_best(public: PublishedRelease, asked: PublicQuestion) -> str:
    """Return within what a question would be answered without noise, by a published
    set; nothing where that can't be said.
    """
    question = asked.question
    if question is None or not question.columns:
        return ""
    try:
        schema = public.privacy.table_schema
        columns = [*question.columns]
        records = SetRecords.of(
            public.sets[0], schema, columns, asked.missing, asked.weights
        )
        if isinstance(question, Formula):
            names, _, variances = regression(records, question, asked.family)
        elif question.kind == "quantile":
            return ""
        else:
            names, _, variances = summary(records, question)
    except InputError:
        return ""
    reaches = ndtri(0.975) * np.sqrt(variances)
    known = np.isfinite(reaches) & (reaches > 0)
    if not known.any():
        return ""
    widest = int(np.argmax(np.where(known, reaches, 0)))
    least = float(reaches[known].min())
    if known.sum() == 1:
        return f" within about ± {least:.2g}, noise left out"
    said = f"± {least:.2g} to ± {reaches[widest]:.2g} ({names[widest]})"
    return f" within about {said}, noise left out"


def _is_same_text(text: str, other: str) -> bool:
    """Whether two formulas are written alike but for blanks."""
    return "".join(text.split()) == "".join(other.split())


def _analyses(public: PublishedRelease) -> Iterator[tuple[PublishedRelease, str]]:
    """Yield the releases whose posterior is that of a formula, with the formula: the
    latest answer first, which is pooled with those before it; then the analyses that
    were named before the release, and the release itself last.
    """
    parent = public.home.parent if public.home.name == "public" else public.home
    homes = [*answered_beside(parent).values()][::-1]
    releases = [open(home, key=public.signed_by) for home in homes]
    for release in [*releases, *public.analyses.values(), public]:
        settings = release.privacy.settings
        written = str(settings.get("model_source", "")).strip()
        if settings.get("model") == "formula" and written:
            yield release, written


def _of_posterior(public: PublishedRelease, asked: PublicQuestion) -> Answer:
    """Return the answer of a published posterior of this very question."""
    if asked.target != "population":
        raise InputError("posteriors are of the population")
    if asked.weights is not None:
        raise InputError("posteriors are without weights")
    for release, written in _analyses(public):
        wanted = _wanted(written, release.privacy.table_schema, asked)
        if wanted is not None:
            return _drawn(release, wanted)
    raise InputError("no posterior of this question is published")


def named_analysis(public: PublishedRelease) -> tuple[str, str, Answer] | None:
    """Return the formula that a release was asked for, its family and its answer, named
    as by :func:`ask`; None if it was asked for none.
    """
    release = public.privacy
    written = str(release.settings.get("model_source", "")).strip()
    if release.settings.get("model") != "formula" or not written:
        return None
    text, *settings = written.splitlines()
    family = _family_of(settings)
    wanted = None
    if family in BAMBI_FAMILIES:
        question = None
        with contextlib.suppress(InputError):
            question = read_question(text, release.table_schema)
        asked = PublicQuestion(
            text=text,
            question=question,
            family=BAMBI_FAMILIES[family],
            target="population",
            missing="level",
        )
        wanted = _wanted(written, release.table_schema, asked)
    return text, family, _drawn(public, wanted or [])


def _family_of(settings: Sequence[str]) -> str:
    """Return the family that is written below a formula, by Bambi's name."""
    named = [line for line in settings if line.startswith(FAMILY_LINE)]
    return named[0].removeprefix(FAMILY_LINE).strip("'\" ") if named else "gaussian"


def _wanted(written: str, schema: Schema, asked: PublicQuestion) -> list[str] | None:
    """Return the names of the coefficients that answer the question, if a posterior was
    asked this question; all of them if none are named.
    """
    formula, *settings = written.splitlines()
    if any("~" in line or line.startswith(OTHER_LINK) for line in settings):
        return None
    if BAMBI_FAMILIES.get(_family_of(settings)) != asked.family:
        return None
    if asked.question is None:
        return [] if _is_same_text(formula, asked.text) else None
    if not isinstance(asked.question, Formula):
        return None
    one_level = OF_ONE_LEVEL.match(formula)
    if one_level:
        right = formula[one_level.end() :]
        formula = f"({one_level['name']} == {one_level['level']!r}) ~ {right}"
    try:
        known = Formula.read(formula, schema)
    except InputError:
        return None
    if _key(known) != _key(asked.question):
        return None
    outcome = known.outcome
    is_text = outcome.is_plain and not is_number(outcome.columns[outcome.text])
    # which level such a model counts isn't written in its formula
    if is_text and asked.family == "binomial":
        return None
    return coefficient_names(asked.question)


def _key(formula: Formula) -> tuple[str, frozenset[frozenset[str]]]:
    """Return what two formulas of one question have in common."""
    terms = (frozenset(factor.text for factor in term) for term in formula.terms)
    outcome = formula.outcome
    text = outcome.text
    if outcome.is_levels:
        text = f"{text} == {outcome.columns[text].names()[1]!r}"
    return text, frozenset(terms)


def coefficient_names(formula: Formula) -> list[str]:
    """Return the names of the coefficients in the order of the formula, as Bambi gives
    them: ``sex:school[m, high]``.
    """
    names = ["Intercept"]
    for term in formula.terms:
        text = ":".join(factor.text for factor in term)
        for own in product(*(_levels(factor) for factor in term)):
            inside = ", ".join(level for level in own if level)
            names.append(f"{text}[{inside}]" if inside else text)
    return names


def _levels(factor: Expression) -> list[str]:
    if not factor.is_levels:
        return [""]
    return factor.columns[factor.text].names()[1:]


def _drawn(release: PublishedRelease, wanted: Sequence[str]) -> Answer:
    """Return the coefficients of a published posterior: those that are wanted, or all
    where it has other names, as with another level that the rest are compared with.
    """
    tree = release.posterior
    draws = dict(entries(tree["posterior"].to_dataset()))
    if not wanted or not {*wanted} <= {*draws}:
        wanted = [*draws]
    frame = pd.DataFrame({name: draws[name].ravel() for name in wanted})
    remarks = []
    contradicted = contradiction(tree["posterior"].attrs)
    if contradicted is not None:
        remarks.append(CONTRADICTED.format(contradicted))
    if "question" in tree["posterior"].attrs:
        remarks.append(BEFORE_LOOKING)
    covariance: FloatArray = np.atleast_2d(np.cov(frame.to_numpy().T))
    return Answer(
        tuple(map(str, frame)),
        frame.mean().to_numpy(),
        covariance,
        f"drawn for this question by {release.privacy.mechanism}",
        frame,
        skewed=True,
        source=POSTERIOR,
        remarks=tuple(remarks),
        tree=tree,
    )


def _of_margins(public: PublishedRelease, asked: PublicQuestion) -> Answer:
    """Return the answer of noisy products or margins."""
    if asked.weights is not None:
        raise InputError("noisy counts are without weights")
    margins = _margins_of(public)
    question = asked.question
    if question is None:
        raise InputError("noisy counts answer questions in the grammar")
    if not isinstance(question, Formula):
        n_records = (margins.found.n, float(margins.found.total_variance))
        alone = of_intervals(public, question, n_records, asked.target)
        if alone is not None:
            return alone
        answer = margins.summarise(
            asked.text, target=asked.target, missing=asked.missing
        )
        return _without_caps(public, asked, answer, margins)
    schema = public.privacy.table_schema
    may_lack = [name for name in question.columns if schema.columns[name].missing]
    if asked.missing == "drop" and not all(
        is_number(schema.columns[name]) for name in may_lack
    ):
        raise InputError("noisy counts have missing as a level of its own")
    if asked.family == "gaussian":
        answer = margins.ols(asked.text, target=asked.target)
    else:
        answer = margins.glm(asked.text, family=asked.family, target=asked.target)
    arranged = answer.arranged(coefficient_names(question))
    return _without_caps(public, asked, arranged, margins)


def _without_caps(
    public: PublishedRelease,
    asked: PublicQuestion,
    answer: Answer,
    margins: NoisyMargins,
) -> Answer:
    """Return an answer about the numbers themselves, where products have caps."""
    is_capped = answer.source == PRODUCTS and not answer.is_open
    if not is_capped or margins.moments is None or asked.question is None:
        return answer
    without = with_what_caps_hide(
        answer, public, asked.question, asked.missing, margins.moments.caps
    )
    return with_hidden_tails(
        without, public, asked.question, asked.family, asked.missing
    )


def _margins_of(public: PublishedRelease) -> NoisyMargins:
    try:
        margins: NoisyMargins = public.margins
    except (TypeError, LookupError, AttributeError):
        version = public.privacy.software.get("pdips", "unknown")
        raise InputError(
            f"its noisy counts are of pdips {version}, and can't be read by this one"
        ) from None
    return margins


def _of_sets(public: PublishedRelease, asked: PublicQuestion) -> Answer:
    """Return the answer of the synthetic sets."""
    if asked.target != "population":
        raise InputError("intervals from sets are of the population")
    if asked.question is None:
        raise InputError("sets are asked in the grammar")
    answer = of_sets(public, asked.question, asked.family, asked.missing, asked.weights)
    return with_hidden_tails(
        answer, public, asked.question, asked.family, asked.missing, asked.weights
    )


type Source = Callable[[PublishedRelease, PublicQuestion], Answer]

SOURCES: Mapping[str, Source] = {
    "posterior": _of_posterior,
    "noisy counts": _of_margins,
    "sets": _of_sets,
}
"""Sources in the order in which they are asked; the first that leaves nothing open
answers.

The order is fixed by the design, and widths that came out aren't compared: the shortest
of several intervals holds the truth less often than each of them does, since it is
often short by chance, most of all by the chance of few sets. Whether a source holds a
question at all is public. Whether the noise leaves it open isn't; but of least squares
the noisy counts of the predictors decide that, not the error of a coefficient, and the
interval that is given up would be the whole line, which can't miss. So what may be
added to the misses of the first source is at most those of the next one, in releases
that are left open (``docs/results/outside.md`` has how often both held).
"""
