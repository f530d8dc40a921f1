"""Numbers as people read them."""

import math

NARROW = "\N{NARROW NO-BREAK SPACE}"
TIMES = "\N{MULTIPLICATION SIGN}"
SPACE = "\N{NO-BREAK SPACE}"
ABSENT = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """Return a number at three significant digits, whole ones below ten million in
    full; a dash for none.
    """
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if value == 0:
        return "0"
    mantissa, _, power = f"{value:.2e}".partition("e")
    if not -4 <= int(power) < 7:
        return _scientific(mantissa, power)
    return f"{value:,.{max(0, 2 - int(power))}f}".replace("-", MINUS)


def percent(share: float | None, *, short: bool = False) -> str:
    """Return a share as a percentage; ``short`` leaves out zeros at the end."""
    if share is None:
        return ABSENT
    return f"{100 * share:g}{NARROW}%" if short else f"{number(100 * share)}{NARROW}%"


def price(value: float | None) -> str:
    """Return a privacy loss as it was set, to six digits."""
    if value is None:
        return ABSENT
    mantissa, _, power = f"{value:g}".partition("e")
    return _scientific(mantissa, power) if power else mantissa.replace("-", MINUS)


def _scientific(mantissa: str, power: str) -> str:
    factor = ""
    if mantissa != "1":
        factor = f"{mantissa}{SPACE}{TIMES}{SPACE}".replace("-", MINUS)
    return f"{factor}10{str(int(power)).translate(SUPERSCRIPT)}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, which takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def width_in_letters(text: str) -> int:
    """Return how wide a text is in letters, of which those of East Asia take two."""
    from rich.cells import cell_len

    return cell_len(text)
