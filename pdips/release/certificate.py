"""``certificate.json``: how often intervals from a release's sets held in replays of
it. Public: it reads no record.
"""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from pdips.errors import InputError
from pdips.release.documents import Document, Finite, PrivacyDocument
from pdips.release.folder import file_digest

# Below this, by more than two standard errors, intervals of 95 % don't cover what they
# should
LEAST = 0.93
# Kinds of numbers that fail with the release as a whole
MEASURED = ("levels", "pairs", "noisy counts")

SILENT = (
    "Replays draw tables from this release's own sets, weighted to agree with its "
    "noisy counts. They say nothing of "
    "associations that no measured margin holds."
)


class Covered(BaseModel):
    """How often 95 % intervals of one kind of number held: the mean over replays, and
    its standard error.
    """

    what: str
    covered: Annotated[Finite, Field(ge=0, le=1)]
    standard_error: Annotated[Finite, Field(ge=0)]
    numbers: int

    @property
    def fails(self) -> bool:
        """Whether this is too low for chance to explain."""
        return self.covered + 2 * self.standard_error < LEAST


class Certificate(Document):
    """What replays of a release have shown.

    ``agreement`` is the share of noisy counts of levels and pairs that the sets agree
    with, as far as noise and sampling let them: a fit that is too poor shows there.
    None where a release publishes none.
    """

    file: ClassVar[str] = "certificate.json"

    release: str  # SHA-256 of privacy.json
    replays: Annotated[int, Field(ge=2)]
    rule: str
    rows: list[Covered]
    agreement: Covered | None = None

    @classmethod
    def beside(cls, public: Path) -> "Certificate | None":
        """Read the certificate of the release in a public folder, or return None where
        there is none.
        """
        found = cls.found(public)
        if found is not None and found.release != file_digest(
            public / PrivacyDocument.file
        ):
            raise InputError(
                f"{public / cls.file} is of another release than "
                f"privacy.json beside it: certify again"
            )
        return found

    @property
    def failing(self) -> list[str]:
        """What doesn't hold, in words."""
        found = [
            f"{one.what} ({one.covered:.0%} of 95 % intervals)"
            for one in self.rows
            if one.fails
        ]
        poor = self.agreement is not None and self.agreement.fails
        return [
            *found,
            *(
                ["the noisy counts themselves, with which the sets don't agree"]
                if poor
                else []
            ),
        ]

    @property
    def refusal(self) -> str | None:
        """Why no rule fits the sets: intervals of levels or pairs fail, or the sets
        disagree with noisy counts.
        """
        if not any(
            one.fails
            for one in (*self.rows, self.agreement)
            if one is not None and one.what in MEASURED
        ):
            return None
        failing = "; ".join(self.failing)
        return (
            f"no rule fits these sets: in {self.replays} replays "
            f"(certificate.json) intervals failed for {failing}"
        )

    def sentences(self) -> list[str]:
        """Return what the card says."""
        held = ", ".join(
            f"{one.what} {one.covered:.1%} (± {one.standard_error:.1%})"
            for one in self.rows
        )
        said = [
            f"95 % intervals covered, in {self.replays} replays of models fitted "
            f"to this release: {held}."
        ]
        if self.agreement is not None:
            said.append(
                f"The sets agree with {self.agreement.covered:.1%} of the "
                f"noisy counts of levels and pairs."
            )
        return [
            *said,
            *(
                [f"Not to be relied on: {'; '.join(self.failing)}."]
                if self.failing
                else []
            ),
            SILENT,
        ]
