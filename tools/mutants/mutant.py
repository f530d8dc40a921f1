"""What a mutant is."""

from dataclasses import dataclass

CONTRACT = "tests/contract/test_contract.py"
CURATOR = "tests/privacy/test_curator.py"
PAIRS = "tests/margins/test_pairs.py"
INTERVALS = "tests/margins/test_intervals.py"
GROUPS = "tests/prices/test_group_sums_price.py"
SCORES = "tests/prices/test_modips_and_scores.py"
CENTRED = "tests/prices/test_centred_scores.py"
LOSSES = "tests/audit/test_losses.py"
POST = "tests/audit/test_postprocessing.py"
RHO = "tests/prices/test_rho.py"


@dataclass(frozen=True)
class Mutant:
    """A fault that tests must notice.

    Parameters
    ----------
    what : str
        What it breaks.
    file : str
        Below ``pdips/``.
    old, new : str
        The text, which stands in the file exactly once however its lines are broken,
        and what takes its place.
    tests : str
        Arguments of pytest.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str
