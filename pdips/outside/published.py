"""What a public folder says of its noisy margins beside the counts: their schema, the
laws of their noise, products.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.fields.products import PRODUCTS, NoisyProducts
from pdips.privacy.plan import Step
from pdips.registry import MECHANISMS, find
from pdips.release import VERSION
from pdips.release.documents import PrivacyDocument
from pdips.release.noisy_margins import noise_variance


def measured_schema(
    schema: Schema, columns: Mapping[str, Any], axes: Mapping[str, Any]
) -> Schema:
    """Return a schema whose numeric columns have the bins that were measured, without
    structural zeros that no margin knows of.
    """
    binned = dict(columns)
    for name, column in schema.columns.items():
        if not column.is_categorical and not column.is_binned:
            if name not in axes:
                raise InputError(
                    f"no margin holds {name!r}, a numeric column without bins"
                )
            edges = (*axes[name].lower, float(column.upper or 0.0))
            binned[name] = column.model_copy(update={"bin_edges": edges})
    update: dict[str, Any] = {"columns": binned}
    if not any(axis.codes for axis in axes.values()):
        update |= {"impossible": (), "rule": ()}
    return schema.model_copy(update=update)


def moments_of(
    document: PrivacyDocument,
    tables: Mapping[str, pd.DataFrame],
    n_records: int | None,
) -> NoisyProducts | None:
    """Return the noisy products of a release, if it has some."""
    if document.mechanism not in MECHANISMS or not {"products", "caps"} <= {*tables}:
        return None
    schema = document.table_schema
    mechanism = find(document.mechanism)(**document.mechanism_settings)
    if not hasattr(mechanism, "moments"):
        return None
    design = mechanism.moments(schema)
    if design is None:
        return None
    step = mechanism.plan(schema).named(PRODUCTS)
    return NoisyProducts.read(design, step, n_records, tables)


def check_laws(document: PrivacyDocument) -> None:
    """Refuse laws of noise that settings and price don't give, or that contradict what
    the file says elsewhere.

    Settings are tried where they are those of this version and need neither a model
    file nor the number of records. A file that was changed throughout, price included,
    isn't noticed.
    """
    scales = {each.scale for each in document.noise}
    is_ours = document.mechanism in MECHANISMS
    has_planned_scales = is_ours and find(document.mechanism).offers.planned_scales
    if has_planned_scales and document.software.get("pdips") == VERSION:
        plan = find(document.mechanism)(**document.mechanism_settings).plan(
            document.table_schema
        )
        scales = {scale for step in plan.steps for scale in _scales_of(step)}
    for law in document.margins:
        if law.law == "estimate":
            continue
        variance = noise_variance(law.law, law.scale)
        is_planned = np.isclose(list(scales), law.scale, rtol=1e-9).any()
        if not is_planned or not np.isclose(law.variance, variance, rtol=1e-6):
            raise InputError(
                "a law of noise in privacy.json isn't that of its "
                "settings: one of them was changed"
            )


def _scales_of(step: Step) -> Iterator[float]:
    """Yield the scales of a step's noise as ``privacy.json`` writes them: of Gaussian
    noise standard deviations.
    """
    power = 0.5 if step.law == "gaussian" else 1
    if step.image is None:
        for units in step.units or (1,):
            yield float(step.enlarged(units).parameter) ** power
    else:
        for weight in np.unique(step.image.weights).tolist():
            yield float(step.image.scale(step, weight)) ** power
