"""What a mechanism tries on stand-ins before anything is spent, so that what could fail afterwards fails there."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm

from pdips.errors import InputError, RefusedError

MOST_REMEMBERED = 64


class Tried:
    """What was tried and passed, by public settings, so that a price that is asked for again costs nothing."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def once[T](self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key of public settings, or make it; what fails isn't remembered."""
        if key not in self._found:
            self._found[key] = make()
            while len(self._found) > MOST_REMEMBERED:
                self._found.pop(next(iter(self._found)))
        found: T = self._found[key]
        return found


@contextmanager
def on_stand_ins(what: str) -> Iterator[None]:
    """Turn whatever a model raises on made-up records into one plain line; it has seen no record."""
    try:
        yield
    except (InputError, RefusedError):
        raise
    except IndexError:
        raise InputError(
            "the model looks something up by a column, and values that the schema allows lie beyond it; make what is "
            "looked up as long as the column has levels or whole numbers"
        ) from None
    except NotImplementedError as error:
        raise InputError(
            f"{what} can't be drawn from: {_line(error)}; a pm.CustomDist needs dist=... or random=..."
        ) from None
    except Exception as error:  # noqa: BLE001 - the analyst's model, on stand-ins
        raise InputError(f"{what} failed on made-up records: {type(error).__name__}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def check_gradient(name: str, model: pm.Model, points: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a model whose log density, or its gradient, is finite at none of some points."""
    free = [model.values_to_rvs[value] for value in model.value_vars if value.dtype.startswith("float")]
    with on_stand_ins("the gradient of the log density"), np.errstate(all="ignore"):
        graphs = [model.logp(), model.dlogp(free)] if free else [model.logp()]
        found = model.compile_fn(graphs, inputs=model.value_vars, mode="FAST_COMPILE", on_unused_input="ignore")
        finite = any(all(np.isfinite(each).all() for each in found(point)) for point in points)
    if not finite:
        raise InputError(
            f"{name}: the log density or its gradient is not a finite number where chains could start; look for "
            "logarithms and roots of what may be 0 or negative"
        )


def check_unused(unused: Sequence[str], drawn_by: str, instead: str) -> None:
    """Refuse settings that would have no effect."""
    if unused:
        raise InputError(
            f"{' and '.join(unused)} would have no effect: this model's parameters are drawn by {drawn_by}; leave "
            f"{'it' if len(unused) == 1 else 'them'} out, or set {instead}"
        )
