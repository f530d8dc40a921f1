"""The papers' tables and figures, computed again. Imports no study until it is asked for one."""

import importlib
from typing import TYPE_CHECKING

from pdips.privacy.loss import choice

if TYPE_CHECKING:
    from pdips_papers.harness.framework import Study

STUDIES: dict[str, str] = {
    "censored-beta": "pdips_papers.pseudo.censored_beta:CensoredBeta",
    "fertility": "pdips_papers.modips.fertility:Fertility",
    "firm-panel": "pdips_papers.kng.firm_panel:FirmPanelStudy",
    "glom": "pdips_papers.modips.glom:Glom",
    "heavy-tailed": "pdips_papers.kng.heavy_tailed:HeavyTailed",
    "normal-moments": "pdips_papers.modips.normal_moments:NormalMoments",
    "proportions": "pdips_papers.modips.proportions:Proportions",
    "salary": "pdips_papers.pseudo.salary:Salary",
    "slomag": "pdips_papers.modips.slomag:Slomag",
    "steps-regression": "pdips_papers.steps.steps_regression:StepsRegression",
    "voter": "pdips_papers.steps.voter:Voter",
}
"""Where each study lives, by its name on the command line."""


def find(name: str) -> "Study":
    """Return a study.

    Raises
    ------
    InputError
        If there is no study of this name; the message lists those that there are.
    """
    module, _, attribute = STUDIES[choice(name, tuple(STUDIES), "study")].partition(":")
    study: Study = getattr(importlib.import_module(module), attribute)()
    return study
