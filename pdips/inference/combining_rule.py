"""Which rule fits which release, from its public settings."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdips.errors import InputError
from pdips.inference.rules import Rule
from pdips.registry import MECHANISMS, find
from pdips.release.release import Release

_ONE_SET = (
    "one synthetic set can't show how uncertain its estimates are, so no rule fits it: ask for a release of two sets "
    "or more ({advice}), or combine it by 'raab-nowok-dibben', which knows of no privacy noise: too short an interval"
)


def rule_for(release: Release | Mapping[str, Any] | str | Path) -> Rule:
    """Say which combining rule fits a release.

    Parameters
    ----------
    release : Release, dict, or path
        The release, the contents of its ``privacy.json``, that file, or the folder it lies in.

    Returns
    -------
    str
        ``"posterior-predictive"`` for ``modips`` with ``split="once"``, whose sets are posterior draws given one noisy
        release; ``"sanitized"`` for sets with noise of their own (``split="per-set"``).

    Warns
    -----
    UserWarning
        Where no rule is right and the nearest is returned: ``modips`` with the plug-in likelihood and
        ``split="once"``, whose posterior takes noisy statistics as exact; other mechanisms with ``split="once"``, whose
        sets share their noise (or one draw of the parameters), so that the variance between them doesn't show it. The
        interval is then too short.

    Raises
    ------
    InputError
        If there is one set only, or the release doesn't say how it was made.
    """
    facts = _facts(release)
    name, n_sets = str(facts["mechanism"]), facts["n_sets"]
    settings = facts["settings"]
    split = settings.get("split") or _only_split(name)
    if n_sets < 2:
        raise InputError(_ONE_SET.format(advice=_advice_on_sets(name)))
    if split == "per-set":
        return "sanitized"
    if split != "once":
        raise InputError(f"the settings of {name!r} don't say how the sets share their noise: name the rule yourself")
    if name != "modips":
        _warn(
            f"the sets of {name} share their noise (split='once'), so the variance between them doesn't show it: "
            "'sanitized' is the nearest rule and its intervals are too short"
        )
        return "sanitized"
    if settings.get("likelihood", "noise-aware") != "noise-aware":
        _warn(
            "the plug-in likelihood takes noisy statistics as exact, so sets made from them once don't show the noise: "
            "no rule is right, 'posterior-predictive' is the nearest, and its intervals are too short"
        )
    return "posterior-predictive"


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=3)


def _advice_on_sets(name: str) -> str:
    if name == "modips":
        return "for modips more sets cost nothing"
    splits = find(name).splits if name in MECHANISMS else ("per-set",)
    return 'with split="per-set"' if "per-set" in splits else f"of a mechanism with split='per-set'; {name} hasn't"


def _only_split(name: str) -> str | None:
    """Return the split of a mechanism that offers one only, and so doesn't repeat it in its settings."""
    splits: tuple[str, ...] = find(name).splits if name in MECHANISMS else ()
    return splits[0] if len(splits) == 1 else None


def _facts(release: Release | Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if isinstance(release, Release):
        return {"mechanism": release.mechanism, "settings": release.settings, "n_sets": release.n_sets}
    found = release if isinstance(release, Mapping) else _read(Path(release))
    if not isinstance(found, Mapping) or not isinstance(found.get("settings"), Mapping):
        raise InputError("privacy.json must hold mechanism, settings and n_sets")
    n_sets = found.get("n_sets")
    if "mechanism" not in found or isinstance(n_sets, bool) or not isinstance(n_sets, int):
        raise InputError("privacy.json must hold mechanism, settings and n_sets")
    return found


def _read(path: Path) -> Any:
    choices = [path] if path.is_file() else [path / "privacy.json", path / "public" / "privacy.json"]
    for each in choices:
        if each.is_file():
            try:
                return json.loads(each.read_text(encoding="utf-8"))
            except (ValueError, OSError):
                raise InputError(f"{each} can't be read as JSON") from None
    raise InputError(f"there is no privacy.json in {path}")
