"""Histogram mechanisms as papers 000, 001 and 003 print them: what they claim isn't what they guarantee."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pdips.data.schema import Schema
from pdips.histogram.histograms import PerturbedHistogram
from pdips.histogram.laplace import LaplaceSanitizer
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import Plan
from pdips.privacy.sensitivity import Sensitivity


@dataclass(frozen=True, kw_only=True)
class PrintedSanitizer(LaplaceSanitizer):
    """The Laplace sanitizer with sensitivity 1 and a public number of records: twice the claimed loss."""

    variant: ClassVar[str] = "published"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    flaw: ClassVar[str] = (
        "NO GUARANTEE. As published: noise of scale 1/epsilon on every cell, with the number of records "
        "public. Replacing one record changes two cells, so the true loss is 2 epsilon."
    )

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return what the papers take it for."""
        return Sensitivity.of_record(schema, l1=1)

    def plan(self, schema: Schema) -> Plan:
        """Return the sanitizer's plan with half its noise."""
        return super().plan(schema).without_guarantee(self.flaw)

    def shown(self) -> dict[str, Any]:
        """Return the variant."""
        return {"variant": self.variant}


@dataclass(frozen=True, kw_only=True)
class PrintedHistogram(PerturbedHistogram, PrintedSanitizer):
    """The perturbed histogram of paper 003, equation 3.1, with the same sensitivity."""

    flaw: ClassVar[str] = (
        "NO GUARANTEE. As published (paper 003, equation 3.1): noise of scale 1/epsilon on every cell, with "
        "the number of records public. Replacing one record changes two cells, so the true loss is 2 epsilon."
    )
