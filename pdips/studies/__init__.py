"""The papers' tables and figures, computed again. Imports no study until it is asked for one."""

import importlib
from typing import TYPE_CHECKING

from pdips.privacy import choice

if TYPE_CHECKING:
    from pdips.studies.framework import Study

STUDIES: dict[str, str] = {
    "censored-beta": "pdips.studies.censored_beta:CensoredBeta",
    "fertility": "pdips.studies.fertility:Fertility",
    "firm-panel": "pdips.studies.firm_panel:FirmPanelStudy",
    "glom": "pdips.studies.glom:Glom",
    "heavy-tailed": "pdips.studies.heavy_tailed:HeavyTailed",
    "normal-moments": "pdips.studies.normal_moments:NormalMoments",
    "proportions": "pdips.studies.proportions:Proportions",
    "salary": "pdips.studies.salary:Salary",
    "slomag": "pdips.studies.slomag:Slomag",
    "steps-regression": "pdips.studies.steps_regression:StepsRegression",
    "voter": "pdips.studies.voter:Voter",
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
