"""What papers print: figures, and what all mechanisms as printed share."""

import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, ClassVar

from pdips.data.schema import Schema
from pdips.mechanism import Mechanism
from pdips.privacy.loss import Kind
from pdips.privacy.plan import Plan
from pdips.registry import variant_class
from pdips.release.offers import Offers


def data(name: str) -> dict[str, Any]:
    """Return what a TOML file of ``data`` holds."""
    return tomllib.loads(
        files("pdips_papers").joinpath("data", name).read_text(encoding="utf-8")
    )


def figures(study: str, table: str) -> dict[str, tuple[float, ...]]:
    """Return figures of a table of the paper that a study follows, by row or column:
    see ``data/printed.toml``.
    """
    return {
        name: tuple(values)
        for name, values in data("printed.toml")[study][table].items()
    }


def mechanism(name: str, form: str, **settings: Any) -> Mechanism:
    """Return a mechanism with its settings, as published if that is the form, else
    sound.
    """
    kind, choosing = variant_class(
        name, "published" if form == "published" else "sound"
    )
    made: Mechanism = kind(**settings, **choosing)
    return made


def flaw_of(form: object) -> str:
    """Return why a form guarantees nothing: see ``data/flaws.toml``."""
    texts = data("flaws.toml")
    return next(
        str(texts[kind.__name__])
        for kind in type(form).__mro__
        if kind.__name__ in texts
    )


@dataclass(frozen=True, kw_only=True)
class Printed(Mechanism):
    """A form that a paper prints: for one replaced record, without a guarantee, and
    said to be so in its settings.
    """

    variant: ClassVar[str] = "published"
    # the plan that it spoils is pure, and refuses what the sound form does
    offers: ClassVar[Offers] = Offers(
        zeros=True, rules=True, public_columns=True, kinds=("pure", "none")
    )
    loss_kind: ClassVar[Kind] = "none"

    @property
    def flaw(self) -> str:
        """The statement of the form: why nothing is guaranteed."""
        return flaw_of(self)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan of the form that this one spoils, which bounds nothing."""
        return replace(super().plan(schema), kind="none", law=self.flaw)  # type: ignore[safe-super]

    def shown(self) -> dict[str, Any]:
        """Return settings that are published otherwise than given, and the variant."""
        return super().shown() | {"variant": self.variant}
