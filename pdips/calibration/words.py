"""What a calibration says of itself: from which facts it follows, what it covers and what it leaves out."""

from collections.abc import Callable
from typing import Any, Protocol

from pdips.calibration.grid import Found
from pdips.calibration.simulation import Simulation
from pdips.mechanism import Mechanism
from pdips.privacy.loss import exact, spell


class Asked(Protocol):
    """What is said of a question."""

    @property
    def goal(self) -> str: ...
    @property
    def target(self) -> float: ...
    @property
    def level(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def n_records(self) -> int | None: ...
    @property
    def sampling_share(self) -> float | None: ...


Words = Callable[[Mechanism, Any, Found], str]


def goal_in_words(question: Asked) -> str:
    """Return what was asked for."""
    what = "standard error" if question.goal == "standard error" else f"width of the {question.level:.4g} interval"
    return f"{what} of {question.target:g}{' (share)' if question.unit == 'share' else ''}"


def closed_form(mechanism: Mechanism, question: Asked, found: Found) -> str:
    """Return the statement of a result in closed form."""
    epsilon = spell(exact(mechanism.epsilon, "epsilon"))
    parts = [
        f"{mechanism.name} reaches a {goal_in_words(question)} at epsilon = {epsilon} in total over {mechanism.n_sets} "
        f"set{'s' if mechanism.n_sets > 1 else ''}, {mechanism.neighbours} neighbours, and not at the next smaller "
        f"number of three digits. Worked out from the schema and the settings: no table was read. It is the error "
        "that the noise gives to counts or statistics, of the mean over all sets, before they are made nonnegative and "
        "whole and into records."
    ]
    if question.sampling_share is None:
        parts.append("The error of a sample, which the records have without any noise, comes on top.")
    else:
        parts.append(
            f"The error of a sample of {question.n_records:,} records from a large population is in it, for a cell of "
            f"share {question.sampling_share:g}."
        )
    return " ".join([*parts, *_of_n(mechanism, question)])


def simulated(simulation: Simulation, *, public: bool) -> Words:
    """Return a function that gives the statement of a simulated result."""

    def say(mechanism: Mechanism, question: Asked, found: Found) -> str:
        epsilon = spell(exact(mechanism.epsilon, "epsilon"))
        where = (
            "a table that was given as PUBLIC or SYNTHETIC. If it is the confidential one, this epsilon depends on its "
            "records, nothing has paid for that, and the guarantee of a release at this epsilon is void"
            if public
            else "records of nobody, drawn independently and evenly from the schema. Real tables are neither"
        )
        text = (
            f"{mechanism.name} reached a {goal_in_words(question)} at epsilon = {epsilon} in total over "
            f"{mechanism.n_sets} set{'s' if mechanism.n_sets > 1 else ''}, {mechanism.neighbours} neighbours, in "
            f"{simulation.replicates} releases (found {found.reached:.4g}, Monte Carlo standard error "
            f"{found.monte_carlo_error:.2g}; two of them to spare), and not at the next smaller number of two digits "
            f"that was tried. Simulated on {where}; on another table the error may be another."
        )
        return " ".join([text, *_of_n(mechanism, question)])

    return say


def _of_n(mechanism: Mechanism, question: Asked) -> list[str]:
    if question.n_records is None or mechanism.neighbours == "replace-one":
        return []
    return [f"The number of records is protected: {question.n_records:,} was taken for it, and must be a public guess."]
