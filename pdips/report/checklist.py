"""The checklist after NIST SP 800-226, for the person who decides whether to publish.

NIST SP 800-226, *Guidelines for Evaluating Differential Privacy Guarantees* (March
2025). Its questions stand in ``checklist.toml``, each with chapter and topic: 2 on what
a guarantee is, 3 on algorithms, utility and bias, 4 on deployment. Here is what the
files of a release answer.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pdips.data.schema import Schema
from pdips.privacy.delta import DeltaSize, size_of_delta
from pdips.release.documents import PrivacyDocument, RunDocument, StatedLoss
from pdips.report.card import combining, odds_factor, round_up
from pdips.report.formats import number, plural, price
from pdips.report.price import LARGE_EPSILON, Losses, public_records, together
from pdips.report.verdict import Verdict

State = Literal["yes", "watch", "no", "person"]
SIGNS: dict[State, str] = {
    "yes": "\N{CHECK MARK}",
    "watch": "!",
    "no": "\N{MULTIPLICATION X}",
    "person": "?",
}
WORDS: dict[State, str] = {
    "yes": "yes",
    "watch": "look closer",
    "no": "no",
    "person": "a person has to answer",
}
OF_SIZE: dict[DeltaSize, State] = {
    "none": "yes",
    "unknown": "person",
    "small": "yes",
    "large": "watch",
    "too large": "no",
}
SMALL_EPSILON = 1.0
BOUNDED = ("pure", "approximate", "zcdp")
TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)
SAID: dict[str, str] = TEXTS.pop("answers")

Answer = tuple[State, str]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question of the checklist."""

    question: str
    state: State = "person"
    found: str
    why: str
    topic: str


def section(
    release: PrivacyDocument, run: RunDocument, losses: Losses
) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it. All that was published
    counts in the price.
    """
    answers = _answers(release, run, losses)
    groups = {}
    for title, texts in TEXTS.items():
        groups[title] = [
            _question(text, answers.get(name)) for name, text in texts.items()
        ]
    questions = [question for group in groups.values() for question in group]
    return {
        "verdict": verdict(questions),
        "groups": groups,
        "signs": SIGNS,
        "words": WORDS,
    }


def _question(text: dict[str, Any], answer: Answer | None) -> Question:
    if answer is None:
        return Question(**text)
    state, found = answer
    return Question(**text, state=state, found=found)


def verdict(questions: Sequence[Question]) -> Verdict:
    """Return the verdict: bad with any no, else what is open."""
    states = [question.state for question in questions]
    no = states.count("no")
    watch = states.count("watch")
    person = states.count("person")
    verb = "waits" if person == 1 else "wait"
    waiting = f"{plural(person, 'question')} {verb} for a person."
    if no:
        are = "is" if no == 1 else "are"
        line = (
            f"{plural(no, 'question')} of {len(questions)} {are} answered by no; "
            f"{waiting}"
        )
        return Verdict(level="bad", line=line)
    if watch:
        line = (
            f"Nothing is answered by no; {plural(watch, 'answer')} to look at "
            f"closer, and {waiting}"
        )
        return Verdict(level="watch", line=line)
    if person:
        return Verdict(
            level="open",
            line=f"What the files of the release can answer is in order; {waiting}",
        )
    return Verdict(level="good", line="All questions are answered by yes.")


def _answers(
    release: PrivacyDocument, run: RunDocument, losses: Losses
) -> dict[str, Answer]:
    """Return what the files answer, by the name of the question."""
    total = together(losses)
    bounded = total.kind in BOUNDED
    return {
        "bounded": _bounded(release, total, [*losses]),
        "epsilon": _epsilon(total.epsilon, bounded=bounded, delta=total.delta),
        "delta": _delta(total.delta, public_records(release, run)),
        "unit": _unit(release.table_schema),
        "number": _number(total),
        "proof": _proof(release, bounded=bounded),
        "law": _law(total, bounded=bounded),
        "seed": _either(not release.reproducible, "system", _said("no", "seed")),
        "copied": _copied(release.table_schema),
        "ledger": _ledger(run),
        "errors": _either(bool(release.noise), "listed", _said("watch", "none_known")),
        "intervals": _intervals(release),
        "time": _either(
            release.settings.get("sampler") != "rejection",
            "hidden",
            _said("watch", "slow"),
        ),
        "collected": _collected(release.table_schema),
    }


def _either(holds: bool, name: str, otherwise: Answer) -> Answer:
    """Return the answer yes, in the words of this name, or another one."""
    return _said("yes", name) if holds else otherwise


def _bounded(
    release: PrivacyDocument, total: StatedLoss, published: Sequence[str]
) -> Answer:
    over = [plural(release.n_sets, "set")]
    for what in published[1:]:
        over.append(f"{what[0].lower()}{what[1:]}")
    said = (
        f"epsilon = {price(total.epsilon)} in total over {' and '.join(over)}, "
        f"kind {total.kind}."
    )
    if total.kind in BOUNDED:
        return "yes", said
    return "no", f"No: {said} That figure bounds nothing for this table."


def _unit(schema: Schema) -> Answer:
    """Answer whether all records of a person are protected together."""
    members = schema.members
    if members is None:
        most = plural(schema.records.max_per_person, "record")
        key = schema.records.person
    else:
        most = plural(members.most, "member")
        key = members.key
    cap = f"Up to {most} a {schema.unit}"
    if not key:
        return "person", f"{cap}{SAID['declared']}"
    return "yes", f"{cap}, checked against the key {key!r} before the release."


def _number(total: StatedLoss) -> Answer:
    is_protected = total.neighbours == "add-remove"
    return _either(is_protected, "protected", _said("person", "known"))


def _proof(release: PrivacyDocument, *, bounded: bool) -> Answer:
    if bounded and release.settings.get("variant") != "published":
        return "yes", f"{release.mechanism}{SAID['proof']}"
    return _said("no", "no_proof")


def _law(total: StatedLoss, *, bounded: bool) -> Answer:
    is_exact = total.sampling == "exact"
    state: State = "yes" if is_exact and bounded else "watch"
    return _said(state, "exact" if is_exact else "floating")


def _copied(schema: Schema) -> Answer:
    if not schema.public_columns:
        return _said("yes", "none_copied")
    return "person", f"Copied as they are: {', '.join(schema.public_columns)}."


def _intervals(release: PrivacyDocument) -> Answer:
    rule = combining(release).rule
    if not rule:
        return _said("watch", "no_rule")
    return "yes", f"By the rule '{rule}', as the card shows; bias is not allowed for."


def _collected(schema: Schema) -> Answer:
    return "person", f"{plural(len(schema.columns), 'column')} are synthesized."


def _said(state: State, name: str) -> Answer:
    return state, SAID[name]


def _epsilon(epsilon: float, *, bounded: bool, delta: float) -> Answer:
    if not bounded:
        return "no", "The figure bounds nothing."
    factor = f"by a factor of at most {number(round_up(odds_factor(epsilon)))}."
    what = "Up to delta, probabilities change" if delta else "An attacker's odds change"
    said = f"{what} {factor}"
    if epsilon <= SMALL_EPSILON:
        return "yes", said
    if epsilon <= LARGE_EPSILON:
        return "person", f"{said} Between 1 and 10 it is for persons to judge."
    return "watch", f"{said} Above 10 the bound says little."


def _delta(delta: float, n: int | None) -> Answer:
    size = size_of_delta(delta, n)
    found = f"delta = {price(delta)}; how many records there are isn't public here."
    if size == "none":
        found = "delta is 0."
    elif n:
        found = (
            f"delta = {price(delta)}, and one over the square of the number of "
            f"records is {number(1 / n**2)}."
        )
    return OF_SIZE[size], found


def _ledger(run: RunDocument) -> Answer:
    ledger = run.ledger
    if ledger is None:
        return "watch", "No ledger was named."
    found = f"The ledger has {price(ledger.spent_epsilon)} spent and"
    if ledger.total_epsilon is None:
        return "watch", f"{found} no total."
    return "yes", f"{found} a total of {price(ledger.total_epsilon)}."
