"""The checklist after NIST SP 800-226, for the person who decides whether to publish.

NIST SP 800-226, *Guidelines for Evaluating Differential Privacy Guarantees* (March 2025). Items name its chapter and
topic: 2 on what a guarantee is, 3 on algorithms, utility and bias, 4 on deployment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdips.release.documents import PaidDocument, PrivacyDocument, RunDocument
from pdips.report.advice import combining
from pdips.report.formats import number, plural, price
from pdips.report.meaning import odds_factor, round_up
from pdips.report.price import LARGE_EPSILON, total
from pdips.report.verdicts import Verdict

State = Literal["yes", "watch", "no", "person"]
SIGNS: dict[State, str] = {"yes": "\N{CHECK MARK}", "watch": "!", "no": "\N{MULTIPLICATION X}", "person": "?"}
WORDS: dict[State, str] = {"yes": "yes", "watch": "look closer", "no": "no", "person": "a person has to answer"}
SMALL_EPSILON = 1.0
BOUNDED = ("pure", "approximate", "zcdp")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question of the checklist.

    Attributes
    ----------
    question : str
        To be answered by yes before a release goes out.
    state : {"yes", "watch", "no", "person"}
        What the files of the release say; ``person`` where they can't know.
    found : str
        The answer, and what shows it.
    why : str
        What goes wrong otherwise, in a line.
    topic : str
        Chapter and topic of NIST SP 800-226.
    """

    question: str
    state: State
    found: str
    why: str
    topic: str

    @property
    def sign(self) -> str:
        """The state as one character."""
        return SIGNS[self.state]

    @property
    def word(self) -> str:
        """The state in words."""
        return WORDS[self.state]


def section(facts: PrivacyDocument, run: RunDocument, paid: PaidDocument | None = None) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it. A paid evaluation is published too, so its price counts."""
    groups = {
        "What is promised, and to whom": promised(facts, run, paid),
        "How it was computed": computed(facts),
        "What else is known of these people": composed(facts, run),
        "Utility, bias and intervals": useful(facts),
        "Operations": operated(facts),
    }
    checks = [check for group in groups.values() for check in group]
    return {"verdict": verdict(checks), "groups": groups, "counts": {state: _count(checks, state) for state in WORDS}}


def verdict(checks: Sequence[Check]) -> Verdict:
    """Return the verdict: bad with any no, else what is open."""
    no, watch, person = (_count(checks, state) for state in ("no", "watch", "person"))
    waiting = f"{plural(person, 'question')} {'waits' if person == 1 else 'wait'} for a person."
    if no:
        line = f"{plural(no, 'question')} of {len(checks)} {'is' if no == 1 else 'are'} answered by no; {waiting}"
        return Verdict(level="bad", line=line)
    if watch:
        line = f"Nothing is answered by no; {plural(watch, 'answer')} to look at closer, and {waiting}"
        return Verdict(level="watch", line=line)
    if person:
        return Verdict(level="open", line=f"What the files of the release can answer is in order; {waiting}")
    return Verdict(level="good", line="All questions are answered by yes.")


def promised(facts: PrivacyDocument, run: RunDocument, paid: PaidDocument | None = None) -> list[Check]:
    """Return the questions on the guarantee itself."""
    privacy, bounded = facts.privacy, facts.privacy.kind in BOUNDED
    sets, epsilon = plural(facts.n_sets, "set"), total(facts, paid)
    over = f"{sets} and their paid evaluation" if paid else sets
    said = f"epsilon = {price(epsilon)} in total over {over}, kind {privacy.kind}."
    return [
        Check(
            question="Is the loss bounded, over all that is published?",
            state="yes" if bounded else "no",
            found=said if bounded else f"No: {said} That figure bounds nothing for this table.",
            why="A figure that is approached, or that holds on average, says nothing of this table.",
            topic="2: privacy parameters and variants",
        ),
        _epsilon(facts, epsilon),
        _delta(facts, run.n_records),
        _unit(facts),
        Check(
            question="Is the number of records protected, or no secret?",
            state="yes" if privacy.neighbours == "add-remove" else "person",
            found="Protected: neighbours are add-remove."
            if privacy.neighbours == "add-remove"
            else "Neighbours are replace-one: the sets show it. Somebody has to say that it is no secret.",
            why="Where taking part is itself the secret, the number of records may give it away.",
            topic="2: unit of privacy",
        ),
    ]


def _epsilon(facts: PrivacyDocument, epsilon: float) -> Check:
    state: State = "yes" if epsilon <= SMALL_EPSILON else "person" if epsilon <= LARGE_EPSILON else "watch"
    factor = f"An attacker's odds change by a factor of at most {number(round_up(odds_factor(epsilon)))}."
    if facts.privacy.delta:
        factor = f"Up to delta, probabilities change by a factor of at most {number(round_up(odds_factor(epsilon)))}."
    if facts.privacy.kind not in BOUNDED:
        state, factor = "no", "The figure bounds nothing."
    judged = {"person": " Between 1 and 10 it is for persons to judge.", "watch": " Above 10 the bound says little."}
    return Check(
        question="Is epsilon small enough for what is at stake?",
        state=state,
        found=factor + judged.get(state, ""),
        why="Below 1 the promise is strong; from 10 on it may mean little in practice.",
        topic="2: privacy parameter epsilon",
    )


def _delta(facts: PrivacyDocument, n: int | None) -> Check:
    delta = facts.privacy.delta
    state: State = "person"
    found = f"delta = {price(delta)}; the run doesn't say how many records there are."
    if not delta:
        state, found = "yes", "delta is 0."
    elif n:
        state = "no" if delta >= 1 / n else "watch" if delta > 1 / n**2 else "yes"
        found = f"delta = {price(delta)}, and one over the square of the number of records is {number(1 / n**2)}."
    return Check(
        question="Is delta far below one over the number of records?",
        state=state,
        found=found,
        why="A delta of that size allows a record to be published in full now and then.",
        topic="2: variants of differential privacy",
    )


def _unit(facts: PrivacyDocument) -> Check:
    records = facts.table_schema.records
    cap = plural(records.max_per_person, "record")
    return Check(
        question="Is all that one person contributed protected together?",
        state="yes" if records.person else "person",
        found=f"Up to {cap} a person, checked against the key {records.person!r} before the release."
        if records.person
        else f"Up to {cap} a person, declared and not checked. Somebody has to know that it is so.",
        why="Whoever has more records than the cap is protected less than the page says.",
        topic="2: unit of privacy",
    )


def computed(facts: PrivacyDocument) -> list[Check]:
    """Return the questions on mechanism, sampling, randomness and what was taken as public."""
    published, exact = facts.settings.get("variant") == "published", facts.privacy.sampling == "exact"
    bounded = facts.privacy.kind in BOUNDED
    return [
        Check(
            question="Is there a proof, and is it of what was run?",
            state="yes" if bounded and not published else "no",
            found=f"{facts.mechanism}: its proof is in the documentation (docs/proofs), and pdips audit tests it."
            if bounded and not published
            else "The form printed in a paper was run, for studies; its accounting doesn't hold.",
            why="A proof of something else protects nobody.",
            topic="3: algorithms and correctness",
        ),
        Check(
            question="Was the output drawn from exactly the law of the proof, without floating-point gaps?",
            state="yes" if exact and bounded else "watch",
            found="Sampling is exact: from the law that the proof is about, in whole numbers or rationals."
            if exact
            else "Sampling is in floating point, by Markov chains or independent draws: see the diagnostics.",
            why="Gaps of floating-point noise, or chains that stopped short, tell more than the bound.",
            topic="4: mechanism implementation challenges",
        ),
        Check(
            question="Were the random bits unpredictable, and were they not kept?",
            state="no" if facts.reproducible else "yes",
            found="Made from a seed." if facts.reproducible else "From the operating system; no seed was set.",
            why="Whoever knows the seed can subtract the noise.",
            topic="4: mechanism implementation challenges",
        ),
        _copied(facts),
        Check(
            question="Were schema, settings, model and priors fixed without looking at the table?",
            state="person",
            found="Levels, bounds, bins, impossible combinations, order of columns: nothing in the files shows it.",
            why="What is read off the table is published without being paid for.",
            topic="4: mechanism implementation challenges (tuning)",
        ),
    ]


def _copied(facts: PrivacyDocument) -> Check:
    columns = facts.table_schema.public_columns
    return Check(
        question="Are columns that were copied known to everyone already?",
        state="person" if columns else "yes",
        found=f"Copied as they are: {', '.join(columns)}." if columns else "No column is public: none was copied.",
        why="A copied column is published without any protection.",
        topic="2: mixing with other data releases",
    )


def composed(facts: PrivacyDocument, run: RunDocument) -> list[Check]:
    """Return the questions on other releases about the same people."""
    ledger = run.ledger
    state: State = "watch" if ledger is None or ledger.total_epsilon is None else "yes"
    found = "No ledger was named."
    if ledger is not None:
        left = "no total" if ledger.total_epsilon is None else f"a total of {price(ledger.total_epsilon)}"
        found = f"The ledger has {price(ledger.spent_epsilon)} spent and {left}."
    return [
        Check(
            question="Is this release charged to an account with a limit?",
            state=state,
            found=found,
            why="Prices of releases from the same people add up, whoever makes them.",
            topic="2: composition and privacy budget",
        ),
        Check(
            question="Is everything else that was published about these people accounted for?",
            state="person",
            found="Tables, maps, earlier files, extracts for researchers: the ledger knows of none.",
            why="A release without protection undoes this one for whoever is in both.",
            topic="2: mixing with other data releases",
        ),
        Check(
            question="Was it decided to publish before anybody saw this page?",
            state="person",
            found="This page is computed from the confidential table, and nobody paid for that.",
            why="Choosing among releases by what it shows is an observation that nobody pays for.",
            topic="3: monitoring utility",
        ),
    ]


def useful(facts: PrivacyDocument) -> list[Check]:
    """Return the questions on errors, intervals and small groups."""
    advice = combining(facts)
    return [
        Check(
            question="Are the sizes of the errors published?",
            state="yes" if facts.noise else "watch",
            found="The card lists the standard deviations of the noise."
            if facts.noise
            else "The card says that none are known, and why.",
            why="Users who don't know the noise take it for a finding.",
            topic="3: utility and accuracy",
        ),
        Check(
            question="Can users get honest intervals from the sets?",
            state="watch" if advice.rule is None else "yes",
            found=f"By the rule '{advice.rule}', as the card shows; bias is not allowed for."
            if advice.rule
            else "No rule is right for these sets; the card says so.",
            why="Synthetic records analysed as if they were records give intervals that are too narrow.",
            topic="3: differentially private synthetic data",
        ),
        Check(
            question="Are small groups served well enough, or are users warned?",
            state="person",
            found="Nothing certifies it. Noise is the same for all groups, so it is largest beside the smallest.",
            why="What is lost or made up is lost and made up for minorities first.",
            topic="3: bias",
        ),
    ]


def operated(facts: PrivacyDocument) -> list[Check]:
    """Return the questions on people and machines."""
    hidden = facts.settings.get("sampler") == "rejection"
    return [
        Check(
            question="Is it settled who may read the table and the folder confidential, and when they are deleted?",
            state="person",
            found="The folder is made readable by its owner only (mode 0700).",
            why="A leak of the table itself is a leak that no epsilon bounds.",
            topic="4: data security and access control",
        ),
        Check(
            question="Is it hidden how long the run took?",
            state="watch" if hidden else "yes",
            found="Rejection takes longer on some tables than on others: who could watch the run?"
            if hidden
            else "No time is in the folder public. Who could watch the machine is outside the guarantee.",
            why="Times depend on the table.",
            topic="4: side channels",
        ),
        Check(
            question="Is every column needed, and are people told what is collected?",
            state="person",
            found=f"{plural(len(facts.table_schema.columns), 'column')} are synthesized.",
            why="What isn't collected can't leak.",
            topic="4: data collection exposure",
        ),
        Check(
            question="Has somebody reviewed the disclosure risk, and who answers users' questions?",
            state="person",
            found="To be named below.",
            why="A guarantee is a claim by persons, who have to stand by it.",
            topic="4: trust models",
        ),
    ]


def _count(checks: Sequence[Check], state: str) -> int:
    return sum(check.state == state for check in checks)
