"""The command ``check``: whether known faults touch a release."""

import sys
import textwrap
from pathlib import Path

import click

from pdips.errors import InputError

WIDTH = 110
TOUCHED = 3


@click.command()
@click.argument("directory", metavar="DIR")
def check(directory: str) -> None:
    """Tell whether known faults of the version that made the release in DIR touch it.

    DIR is the folder of a release, or its public folder alone. Nothing but privacy.json is read. Exit code: 0 no known
    fault touches it, 3 one does or may, 2 no release.
    """
    from pdips.release.documents import read_json
    from pdips.release.known_faults import examine

    home = Path(directory)
    places = (home / "public" / "privacy.json", home / "privacy.json", home / "confidential" / "privacy.json")
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(
            f"{directory} is no folder of a pdips release: neither it nor its folders public and confidential hold "
            "privacy.json"
        )
    found = examine(read_json(path))
    click.echo(f"release   {found.mechanism}, made by {found.described}")
    for fault in found.faults:
        _show(f"{fault.identifier:<4}      {fault.severity.upper()}: {fault.wrong}")
        if fault.when:
            _show(f"          Touched if {fault.when}.")
        _show(f"          {fault.do}")
    if not found.faults:
        click.echo("known     no known fault touches it (faults found later are not known to this version)")
        return
    _show(f"known     {len(found.faults)} known fault(s) touch it or may; docs/changelog.md describes each")
    sys.exit(TOUCHED)


def _show(text: str) -> None:
    click.echo(textwrap.fill(text, WIDTH, subsequent_indent=" " * 10))
