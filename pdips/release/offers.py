"""What a mechanism keeps to: facts that pages, rules and programs ask for in place of
its name.
"""

from dataclasses import dataclass
from typing import Literal

from pdips.privacy.loss import Kind, Neighbours

SetsShare = Literal["noise", "own noise", "fresh noise", "posterior"]
"""What the synthetic sets of one release share.

With ``"noise"`` they are made of the same noisy answers, or of one draw of the
parameters, and the variance between them doesn't show the noise. Sets with ``"own
noise"`` were paid for one by one. With ``"fresh noise"`` each is made of the noisy
answers with noise of the same law on top, with ``"posterior"`` of its own draw of a
posterior that knows the noise: both show it.
"""

PosteriorOf = Literal["nothing", "answers", "records"]


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What a mechanism keeps to. By default it keeps to nothing, and a schema that asks
    for more is refused before the table is read.

    Parameters
    ----------
    zeros : bool
        No synthetic record is one of the schema's impossible combinations.
    rules : bool
        All synthetic records keep the schema's rules.
    public_columns : bool
        All sets have the public columns of the table.
    totals : bool
        All sets have the counts of the schema's public totals.
    households : bool
        All sets have members in the first places of a household alone.
    counted_tables : bool
        It takes tables of distinct records and their counts.
    partitions : bool
        All that it asks are sums over records, so that it takes tables in many files.
    relations : tuple of {"replace-one", "add-remove"}
        Neighbours that there is a proof for.
    kinds : tuple of {"pure", "zcdp", "approximate", "asymptotic", "none"}
        Kinds of losses that it can have.
    sets_share : {"noise", "own noise", "fresh noise", "posterior"}
        What its sets share, unless a setting says otherwise.
    posterior_of : {"nothing", "answers", "records"}
        What the posterior that sets are drawn from is given: noisy answers, so that
        chains may be run again at no cost, or confidential records.
    even_in_cells : bool
        Numbers are drawn evenly within the bins or intervals that are counted.
    planned_scales : bool
        All noise has the scales that settings and schema give, so that outsiders can
        work them out again.

    Examples
    --------
    >>> Offers(zeros=True).zeros, Offers().zeros
    (True, False)
    """

    zeros: bool = False
    rules: bool = False
    public_columns: bool = False
    totals: bool = False
    households: bool = False
    counted_tables: bool = False
    partitions: bool = False
    relations: tuple[Neighbours, ...] = ("replace-one",)
    kinds: tuple[Kind, ...] = ("pure",)
    sets_share: SetsShare = "noise"
    posterior_of: PosteriorOf = "nothing"
    even_in_cells: bool = False
    planned_scales: bool = False
