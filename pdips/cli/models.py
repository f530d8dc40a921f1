"""The commands ``models ...``."""

from pathlib import Path

import click

from pdips.errors import InputError


@click.group()
def models() -> None:
    """Models that come with pdips, to use by name or to copy and change."""


@models.command("list")
def models_list() -> None:
    """Show the models and what they describe."""
    from pdips.posterior import model_file

    known = model_file.names()
    width = max(map(len, known), default=0)
    for name, line in known.items():
        click.echo(f"{name:{width}}  {line}")


@models.command("copy")
@click.argument("name", metavar="NAME")
@click.option(
    "--to",
    "target",
    metavar="PATH",
    help="Where to; by default NAME.py in the current folder.",
)
def models_copy(name: str, target: str | None) -> None:
    """Copy the file of model NAME, to be changed. It never overwrites a file."""
    from pdips.posterior import model_file

    source = model_file.path(name)
    copy = Path(source.name if target is None else target)
    if copy.is_dir():
        copy = copy / source.name
    try:
        with copy.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise InputError(f"{copy} exists; name another file with --to") from None
    except OSError as error:
        raise InputError(f"can't write {copy}: {error.strerror}") from None
    click.echo(str(copy))
