"""Thirty models of three galleries and of the project's battery, each from its source's
text to a private posterior: ``python -m benchmarks.gallery [--only NAME] [--page]``.

The models were chosen by the rule in ``chosen.toml`` before one of them was run. Each
is written in PyMC or as a formula as its source's text states it, and given to
``pdips.sample`` with records of which it is true. ``--kept FILE`` adds what came of
them to a file, ``--page`` writes ``docs/results/gallery.md``, with what was kept of
other models. ``--families`` looks at families of models, each in a few lines.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gallery import (
    bambi_examples,
    battery,
    pymc_examples,
    regression_book,
)
from benchmarks.gallery.borderline_families import BORDERLINE
from benchmarks.gallery.common_families import COMMON
from benchmarks.gallery.entries import Entry
from benchmarks.gallery.families import Verdict, verdicts
from benchmarks.gallery.page import write_page
from benchmarks.gallery.run import ACCEPTED, AMENDED, AS_WRITTEN, Outcome, outcome

CHOSEN = Path(__file__).with_name("chosen.toml")
GALLERIES: dict[str, list[Entry]] = {
    "pymc": pymc_examples.ENTRIES,
    "bambi": bambi_examples.ENTRIES,
    "posteriordb": regression_book.ENTRIES,
    "pdips": battery.ENTRIES,
}


def chosen() -> dict[str, list[str]]:
    """Return the names of the models by gallery, as they were chosen."""
    listed = tomllib.loads(CHOSEN.read_text(encoding="utf-8"))
    return {
        gallery: [name for part in parts.values() for name in part]
        for gallery, parts in listed.items()
    }


def entries() -> dict[str, Entry]:
    """Return the models by name, in the order in which they were chosen."""
    written = {each.name: each for models in GALLERIES.values() for each in models}
    return {name: written[name] for names in chosen().values() for name in names}


def run(names: Sequence[str], *, only_check: bool = False) -> Iterator[Outcome]:
    """Release the posteriors of models, and print what came of each."""
    models = entries()
    for name in names:
        entry = models[name]
        forms = [AS_WRITTEN] if entry.amended is None else [AS_WRITTEN, AMENDED]
        for form in forms:
            found = outcome(entry, form, only_check=only_check)
            print(_line(found), flush=True)
            yield found


def _line(found: Outcome) -> str:
    start = f"{found.name} ({found.form}): {found.ending}"
    if found.ending != ACCEPTED:
        return f"{start}, {found.to_plan:.0f} s. {found.sentence}"
    return (
        f"{start}, {found.to_plan:.0f} + {found.release:.0f} s ({found.cpu:.0f} CPU), "
        f"{found.sampler}, {found.n_parameters} parameters, effective "
        f"{found.effective:.0f}, R-hat {found.rhat:.3f}, {found.covered} of "
        f"{found.n_known} covered, misfit {found.misfit:.2g}"
    )


Kept = dict[tuple[str, str], Outcome]


def kept_lines(path: Path | None) -> tuple[Kept, dict[str, Verdict]]:
    """Return what a file keeps, the last of each model and form, and of each family."""
    outcomes: Kept = {}
    families: dict[str, Verdict] = {}
    if path is None or not path.exists():
        return outcomes, families
    for line in path.read_text(encoding="utf-8").splitlines():
        plain = json.loads(line)
        if "family" in plain:
            families[plain["family"]] = Verdict(**plain)
        else:
            outcomes[plain["name"], plain["form"]] = Outcome(**plain)
    return outcomes, families


def _keep(path: Path | None, found: Outcome | Verdict) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found.as_plain()) + "\n")


def main(words: Sequence[str] | None = None) -> None:
    """Run the models that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names; all models where left out")
    parser.add_argument(
        "--check", action="store_true", help="only what comes before a record is read"
    )
    parser.add_argument("--families", action="store_true", help="families too")
    parser.add_argument("--kept", type=Path, help="a file of lines of JSON")
    parser.add_argument("--page", action="store_true", help="write the page")
    asked = parser.parse_args(words)
    outcomes, families = kept_lines(asked.kept)
    names = [*entries()] if asked.only is None else asked.only
    for found in run(names, only_check=asked.check):
        outcomes[found.name, found.form] = found
        _keep(asked.kept, found)
    listed = [*COMMON, *BORDERLINE]
    if asked.families or (asked.page and not families):
        for verdict in verdicts(listed):
            families[verdict.family] = verdict
            _keep(asked.kept, verdict)
    if asked.page:
        known = [families[each.name] for each in listed if each.name in families]
        write_page(GALLERIES, outcomes, known)


if __name__ == "__main__":
    main()
