"""Two measures of a published release, private and paid for: they may be published too."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError
from pdips.evaluation.codes import codes_of, resampled, sizes_of, table_codes
from pdips.evaluation.opened import Opened, open_release, open_table
from pdips.evaluation.public_score import PublicScore, fit_public_score, ks_steps, margins_steps
from pdips.mechanism import LARGEST_EPSILON, Mechanism, statement
from pdips.privacy.curator import Clock
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import FINITE_KINDS, Neighbours, Number, PrivacyLoss, Spend, as_float, exact, positive, spell
from pdips.privacy.noise import LARGEST_SCALE, RandomBits, discrete_laplace, discrete_laplace_variance
from pdips.privacy.statement import SEEDED
from pdips.release.documents import write_json
from pdips.release.release import software

FILE = "evaluation.json"
MEASURES = {
    "SPECKS, public classifier": "0 equal on the score, 1 wholly apart; other classifiers may see more",
    "TVD of one-way and two-way margins": "mean over all margins, 0 equal, 1 disjoint",
}


@dataclass(frozen=True, kw_only=True)
class PaidEvaluation:
    """The price of a private evaluation: half of epsilon for each measure.

    Parameters
    ----------
    epsilon : number
        In nats, for both measures.
    n_sets : int
        Synthetic sets of the release.
    neighbours : {"replace-one"}
        The number of records is public.

    Notes
    -----
    With the sets, and so the score, public and fixed, replacing the up to k records of a person moves n times either
    measure by at most k; so does rounding to whole steps. Each gets discrete Laplace noise of scale 2k / epsilon
    (``docs/proofs/evaluation.md``).
    """

    name: ClassVar[str] = "evaluate"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)

    epsilon: Number
    n_sets: int
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        if positive(self.epsilon, "--paid-epsilon") > LARGEST_EPSILON:
            raise InputError(f"--paid-epsilon must be at most {LARGEST_EPSILON:,}, which protects nobody")
        if self.neighbours not in self.relations:
            raise RefusedError("a paid evaluation needs replace-one neighbours: its figures show the number of records")

    def spends(self, schema: Schema | None = None) -> tuple[Spend, ...]:
        """Return one item a measure, whatever the schema."""
        return tuple(Spend(step=name, epsilon=exact(self.epsilon, "epsilon") / len(MEASURES)) for name in MEASURES)

    def scale(self, schema: Schema) -> Fraction:
        """Return the scale of the noise on each measure, in steps of 1 / n.

        Raises
        ------
        InputError
            If it is more than the sampler draws.
        """
        scale = len(MEASURES) * schema.records.max_per_person / exact(self.epsilon, "epsilon")
        if scale > LARGEST_SCALE:
            raise InputError("--paid-epsilon is too small: the noise would be above 2^50 records")
        return scale

    def privacy_loss(self, schema: Schema) -> PrivacyLoss:
        """Return the price and its statement."""
        law = (
            "It publishes two distances of the table to the published sets, each rounded to whole parts of the number "
            f"of records, with exact discrete Laplace noise of scale {spell(self.scale(schema))} parts: the "
            "Kolmogorov-Smirnov distance of a score that was fitted to the published sets alone, and the mean total "
            "variation distance of all one-way and two-way margins, both averaged over the sets. What the sets cost is "
            "paid apart and adds to this."
        )
        text = statement(_as_mechanism(self), schema, law)
        return PrivacyLoss(
            epsilon=exact(self.epsilon, "epsilon"), neighbours=self.neighbours, kind="pure", statement=text
        )


def evaluate_paid(
    table: str | Path,
    directory: str | Path,
    *,
    epsilon: Number,
    ledger: Ledger | None = None,
    explain: bool = False,
    rng: np.random.Generator | None = None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Measure a published release privately, charge the ledger, and write ``public/evaluation.json``.

    Parameters
    ----------
    table : path
        The confidential table.
    directory : path
        The folder of the release.
    epsilon : number
        The price of both measures together, in nats.
    ledger : Ledger, optional
        The price is reserved there before the table is read, and charged before anything is drawn.
    explain : bool
        Recorded in the ledger: that details of a refusal were asked for.
    rng : numpy.random.Generator, optional
        For tests: nothing is written then.
    clock : Clock, optional
        Times the steps.

    Returns
    -------
    dict
        What was written.

    Raises
    ------
    InputError
        If the folder holds no release, it has an evaluation already, or sets or table don't fit its schema.
    DataError
        If the records don't fit the schema, or the ledger belongs to another table.
    RefusedError
        If the release isn't published, has no guarantee, was made from a seed or for add-remove neighbours, or the
        ledger is overspent.
    """
    clock = clock or Clock()
    with clock.step("reading the release"):
        opened = open_release(directory)
    _refuse(opened)
    price = PaidEvaluation(epsilon=epsilon, n_sets=len(opened.sets), neighbours=opened.facts.privacy.neighbours)
    loss, scale = price.privacy_loss(opened.schema), price.scale(opened.schema)
    with clock.step("fitting the public score"):
        score = fit_public_score(opened.sets, opened.schema)
    if rng is None:
        _check_writable(opened.home)
    receipt = None
    with nullcontext() if ledger is None else ledger.reserve(price, opened.schema, explain=explain):
        with clock.step("reading the table"):
            confidential = open_table(table, opened)
        # All that could fail for reasons of its own comes before the charge.
        references = _references(opened.sets, score, confidential.n_records)
        if ledger is not None:
            with clock.step("charging the ledger"):
                number = ledger.charge(
                    loss,
                    price.spends(),
                    mechanism=price.name,
                    schema=opened.schema,
                    fingerprint=confidential.fingerprint,
                )
                receipt = ledger.receipt(number)
    bits = RandomBits(rng)
    if bits.reproducible:
        loss = replace(loss, statement=f"{SEEDED} {loss.statement}")
    with clock.step("measuring"):
        exact_steps = np.array(measured_steps(confidential, opened.sets, score))
        noisy = exact_steps + discrete_laplace(scale, len(MEASURES), bits)
    del exact_steps
    found = _described(opened, price, loss, scale, noisy, references, confidential.n_records, score)
    found["receipt"] = None if receipt is None else asdict(receipt)
    if not bits.reproducible:
        _write(opened.home, found)
    return found


def measured_steps(table: Table, sets: "tuple[pd.DataFrame, ...]", score: PublicScore) -> tuple[int, int]:
    """Return both measures in whole parts of the number of records: exact, and confidential."""
    return steps_of(table_codes(table), [codes_of(frame, score.schema) for frame in sets], score)


def steps_of(original: IntArray, others: list[IntArray], score: PublicScore) -> tuple[int, int]:
    """Return both measures of codes against codes."""
    ks = ks_steps(score.of(original), [score.of(other) for other in others])
    return ks, margins_steps(original, others, sizes_of(score.schema))


def _references(sets: "tuple[pd.DataFrame, ...]", score: PublicScore, n: int) -> tuple[float, float]:
    """Return what a resample of the first set scores in the place of the table: public, for it reads the sets only."""
    first = next(codes for frame in sets if len(codes := codes_of(frame, score.schema)))
    rng = np.random.default_rng(0)
    drawn = resampled(first, rng) if len(first) == n else first[rng.integers(len(first), size=n)]
    ks, tvd = steps_of(drawn, [first], score)
    return ks / n, tvd / n


def _refuse(opened: Opened) -> None:
    """Refuse what couldn't be published, before anything is read from the table."""
    facts = opened.facts
    if not opened.is_public or facts.privacy.kind not in FINITE_KINDS:
        raise RefusedError(
            "a paid evaluation is of a published release with a guarantee: these sets stay inside, and so does what is "
            "worked out with them (leave out --paid-epsilon)"
        )
    if facts.reproducible:
        raise RefusedError("the release was made from a seed and isn't fit for publication: nor is an evaluation of it")
    if facts.privacy.neighbours != "replace-one":
        raise RefusedError(
            "a paid evaluation shows the number of records, which this release protects (add-remove neighbours)"
        )
    if (opened.home / FILE).exists():
        raise InputError(
            f"{opened.home / FILE} is there already, and each evaluation pays again: move it away if you mean to"
        )


def _described(
    opened: Opened,
    price: PaidEvaluation,
    loss: PrivacyLoss,
    scale: Fraction,
    noisy: IntArray,
    references: tuple[float, float],
    n: int,
    score: PublicScore,
) -> dict[str, Any]:
    deviation = discrete_laplace_variance(scale) ** 0.5 / n
    return {
        "mechanism": price.name,
        "release": opened.describe(),
        "measures": [
            {
                "measure": name,
                "reading": reading,
                "value": min(1.0, max(0.0, int(steps) / n)),
                "noisy_steps": int(steps),
                "steps": n,
                "standard_deviation_of_noise": deviation,
                "reference": reference,
            }
            for (name, reading), steps, reference in zip(MEASURES.items(), noisy, references, strict=True)
        ],
        "references": "what a resample of the first synthetic set scores against it; they cost nothing",
        "score": score.describe(),
        "privacy": {
            "epsilon": as_float(loss.epsilon),
            "delta": 0.0,
            "neighbours": loss.neighbours,
            "kind": loss.kind,
            "sampling": loss.sampling,
            "statement": loss.statement,
        },
        "spends": [{**asdict(spend), "epsilon": as_float(spend.epsilon)} for spend in price.spends()],
        "software": software(),
    }


def _hidden(home: Path) -> Path:
    return home.parent / f".{FILE}"


def _check_writable(home: Path) -> None:
    try:
        for place in (_hidden(home), home / FILE):
            place.write_text("", encoding="utf-8")
            place.unlink()
    except OSError as error:
        raise InputError(f"can't write {home / FILE}: {error.strerror}; nothing was charged") from None


def _write(home: Path, found: dict[str, Any]) -> None:
    hidden = _hidden(home)
    try:
        write_json(hidden, found)
        hidden.replace(home / FILE)
    except OSError as error:
        raise InputError(f"can't write {home / FILE}: {error.strerror}; a spend on record stays charged") from None


def _as_mechanism(price: PaidEvaluation) -> Mechanism:
    return price  # type: ignore[return-value]
