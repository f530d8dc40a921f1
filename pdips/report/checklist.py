"""The checklist after NIST SP 800-226, for the person who decides whether to publish.

NIST SP 800-226, *Guidelines for Evaluating Differential Privacy Guarantees* (March 2025). Its questions stand in
``checklist.toml``, each with chapter and topic: 2 on what a guarantee is, 3 on algorithms, utility and bias, 4 on
deployment. Here is what the files of a release answer.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pdips.release.documents import PrivacyDocument, RunDocument
from pdips.report.card import combining, odds_factor, round_up
from pdips.report.formats import number, plural, price
from pdips.report.price import LARGE_EPSILON, Losses, together
from pdips.report.verdict import Verdict

State = Literal["yes", "watch", "no", "person"]
SIGNS: dict[State, str] = {"yes": "\N{CHECK MARK}", "watch": "!", "no": "\N{MULTIPLICATION X}", "person": "?"}
WORDS: dict[State, str] = {"yes": "yes", "watch": "look closer", "no": "no", "person": "a person has to answer"}
SMALL_EPSILON = 1.0
BOUNDED = ("pure", "approximate", "zcdp")
TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
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


def section(release: PrivacyDocument, run: RunDocument, losses: Losses) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it. All that was published counts in the price."""
    answers: dict[str, Any] = {
        name: {"state": state, "found": found} for name, (state, found) in _answers(release, run, losses)
    }
    groups = {
        title: [Question(**text, **answers.get(name, {})) for name, text in texts.items()]
        for title, texts in TEXTS.items()
    }
    questions = [question for group in groups.values() for question in group]
    return {"verdict": verdict(questions), "groups": groups, "signs": SIGNS, "words": WORDS}


def verdict(questions: Sequence[Question]) -> Verdict:
    """Return the verdict: bad with any no, else what is open."""
    states = [question.state for question in questions]
    no, watch, person = (states.count(state) for state in ("no", "watch", "person"))
    waiting = f"{plural(person, 'question')} {'waits' if person == 1 else 'wait'} for a person."
    if no:
        line = f"{plural(no, 'question')} of {len(questions)} {'is' if no == 1 else 'are'} answered by no; {waiting}"
        return Verdict(level="bad", line=line)
    if watch:
        line = f"Nothing is answered by no; {plural(watch, 'answer')} to look at closer, and {waiting}"
        return Verdict(level="watch", line=line)
    if person:
        return Verdict(level="open", line=f"What the files of the release can answer is in order; {waiting}")
    return Verdict(level="good", line="All questions are answered by yes.")


def _answers(release: PrivacyDocument, run: RunDocument, losses: Losses) -> Iterator[tuple[str, Answer]]:
    """Yield what the files answer, by the name of the question."""
    privacy, settings = together(losses), release.settings
    bounded, exact = privacy.kind in BOUNDED, privacy.sampling == "exact"
    over = " and ".join([plural(release.n_sets, "set"), *[what[0].lower() + what[1:] for what in losses][1:]])
    said = f"epsilon = {price(privacy.epsilon)} in total over {over}, kind {privacy.kind}."
    yield "bounded", ("yes", said) if bounded else ("no", f"No: {said} That figure bounds nothing for this table.")
    yield "epsilon", _epsilon(privacy.epsilon, bounded=bounded, delta=privacy.delta)
    yield "delta", _delta(privacy.delta, run.n_records)
    schema = release.table_schema
    records, members = schema.records, schema.members
    most = plural(members.most, "member") if members else plural(records.max_per_person, "record")
    cap, key = f"Up to {most} a {schema.unit}", members.key if members else records.person
    checked = f"{cap}, checked against the key {key!r} before the release."
    yield "unit", ("yes", checked) if key else ("person", f"{cap}{SAID['declared']}")
    yield "number", _said("yes", "protected") if privacy.neighbours == "add-remove" else _said("person", "known")
    proven = bounded and settings.get("variant") != "published"
    yield "proof", ("yes", f"{release.mechanism}{SAID['proof']}") if proven else _said("no", "no_proof")
    yield "law", ("yes" if exact and bounded else "watch", SAID["exact" if exact else "floating"])
    yield "seed", _said("no", "seed") if release.reproducible else _said("yes", "system")
    copied = ", ".join(schema.public_columns)
    yield "copied", ("person", f"Copied as they are: {copied}.") if copied else _said("yes", "none_copied")
    yield "ledger", _ledger(run)
    yield "errors", _said("yes", "listed") if release.noise else _said("watch", "none_known")
    rule = combining(release).rule
    fits = f"By the rule '{rule}', as the card shows; bias is not allowed for."
    yield "intervals", ("yes", fits) if rule else _said("watch", "no_rule")
    told = settings.get("sampler") in ("rejection", "atoms")  # atoms: up to 0.2.0
    yield "time", _said("watch", "slow") if told else _said("yes", "hidden")
    yield "collected", ("person", f"{plural(len(schema.columns), 'column')} are synthesized.")


def _said(state: State, name: str) -> Answer:
    return state, SAID[name]


def _epsilon(epsilon: float, *, bounded: bool, delta: float) -> Answer:
    if not bounded:
        return "no", "The figure bounds nothing."
    factor = f"by a factor of at most {number(round_up(odds_factor(epsilon)))}."
    said = f"Up to delta, probabilities change {factor}" if delta else f"An attacker's odds change {factor}"
    if epsilon <= SMALL_EPSILON:
        return "yes", said
    if epsilon <= LARGE_EPSILON:
        return "person", f"{said} Between 1 and 10 it is for persons to judge."
    return "watch", f"{said} Above 10 the bound says little."


def _delta(delta: float, n: int | None) -> Answer:
    if not delta:
        return "yes", "delta is 0."
    if not n:
        return "person", f"delta = {price(delta)}; the run doesn't say how many records there are."
    found = f"delta = {price(delta)}, and one over the square of the number of records is {number(1 / n**2)}."
    return "no" if delta >= 1 / n else "watch" if delta > 1 / n**2 else "yes", found


def _ledger(run: RunDocument) -> Answer:
    ledger = run.ledger
    if ledger is None:
        return "watch", "No ledger was named."
    left = "no total" if ledger.total_epsilon is None else f"a total of {price(ledger.total_epsilon)}"
    found = f"The ledger has {price(ledger.spent_epsilon)} spent and {left}."
    return "watch" if ledger.total_epsilon is None else "yes", found
