"""Whether a file says the same of its noise throughout."""

from fractions import Fraction

import numpy as np

from pdips.errors import InputError
from pdips.privacy.noise import discrete_laplace_variance
from pdips.registry import find
from pdips.release import VERSION
from pdips.release.documents import PrivacyDocument


def check_laws(document: PrivacyDocument) -> None:
    """Refuse laws of noise that settings and price don't give, or that contradict what the file says elsewhere.

    Settings are tried where they are those of this version and need neither a model file nor the number of records.
    A file that was changed throughout, price included, isn't noticed.
    """
    known = {each.scale for each in document.noise}
    planned = document.mechanism in ("pairs", "steps", "laplace-sanitizer", "universal-histogram")
    if planned and document.software.get("pdips") == VERSION:
        given = {name: value for name, value in document.settings.items() if name != "delta" or value}
        plan, known = find(document.mechanism)(**given).plan(document.table_schema), set()
        for step in plan.steps:
            weights = [1] if step.image is None else np.unique(step.image.weights).tolist()
            scales = [step.image.scale(step, weight) if step.image else None for weight in weights]
            gaussian = step.law == "gaussian"
            own = [scale or (step.variance if gaussian else step.scale) for scale in scales]
            known |= {float(scale) ** (0.5 if gaussian else 1) for scale in own}
    for law in document.margins:
        if law.law == "estimate":
            continue
        variance = law.scale**2 if law.law == "gaussian" else discrete_laplace_variance(Fraction(law.scale))
        if not np.isclose(list(known), law.scale, rtol=1e-9).any() or not np.isclose(law.variance, variance, rtol=1e-6):
            raise InputError("a law of noise in privacy.json isn't that of its settings: one of them was changed")
