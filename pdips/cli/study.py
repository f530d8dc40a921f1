"""The command ``study`` where the studies aren't installed: it says where they are."""

import click

from pdips.errors import InputError
from pdips.registry import GET_PAPERS


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def study(words: tuple[str, ...]) -> None:
    """Compute a paper's table or figure again (not installed: a package of its own)."""
    raise InputError(f"the studies are in a package of their own: {GET_PAPERS}")
