"""A published release, opened outside: verified, then read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.errors import InputError
from pdips.privacy.answers import Answers
from pdips.privacy.signing import public_key
from pdips.registry import load
from pdips.release.answers import read_answers
from pdips.release.documents import PrivacyDocument, read_bytes
from pdips.release.folder import bytes_digest, parsed_table
from pdips.release.integrity import MAIN_SUFFIXES, examine_public
from pdips.release.release import TREE_FILE

# Import xarray, which a folder without a model does without
READ_TREE = "pdips.release.tree:read_tree"
HOLD = "pdips.release.tree:hold"


@dataclass(frozen=True, kw_only=True)
class PublishedRelease:
    """A public folder whose files are those of its ``privacy.json``: see
    :func:`pdips.open`.

    Parameters
    ----------
    home : Path
        The folder.
    privacy : PrivacyDocument
        What ``privacy.json`` holds: price, settings, noise, schema.
    signed_by : str or None
        The public key that the signature was verified by; None if no key was given.

    Examples
    --------
    >>> schema = Schema.model_validate({"columns": {"ill": {"levels": ["no", "yes"]}}})
    >>> table = Table(pd.DataFrame({"ill": ["no", "yes"] * 50}), schema)
    >>> Margins(epsilon=1).release(table)[0].publish("opened/public")
    >>> [list(frame) for frame in open("opened").sets]
    [['ill']]
    """

    home: Path
    privacy: PrivacyDocument
    signed_by: str | None

    @cached_property
    def sets(self) -> list[pd.DataFrame]:
        """The synthetic sets, read when they are first asked for and compared with
        their digests again.
        """
        return [self._read(number) for number in range(1, self.privacy.n_sets + 1)]

    @cached_property
    def answers(self) -> Answers:
        """All that the table was asked, and answered with noise; none where they are
        too many to be published, or no numbers.
        """
        if not self.privacy.answers:
            return Answers()
        try:
            return read_answers(self.privacy.answers, self._table("answers"))
        except ValueError as error:
            raise InputError(f"answers in {self.home}: {error}") from None

    @cached_property
    def posterior(self) -> Any:
        """The model's draws, the sets and the noisy numbers as an ArviZ tree
        (``xarray.DataTree``): see :func:`pdips.release.tree.public_tree`.
        """
        if TREE_FILE not in (self.privacy.digests or {}):
            raise InputError(f"{self.home} publishes no posterior")
        tree = load(READ_TREE)(self._content(TREE_FILE))
        return load(HOLD)(tree, self, None)

    @cached_property
    def analyses(self) -> dict[str, "PublishedRelease"]:
        """The analyses that were named before the release and are parts of it, each
        with its posterior, by how they were written.
        """
        found = {}
        for stated in self.privacy.analyses:
            found[stated.question] = open(self.home / stated.folder, key=self.signed_by)
        return found

    @cached_property
    def margins(self) -> Any:
        """Noisy counts, which give estimates with intervals:
        :class:`pdips.outside.NoisyMargins`.
        """
        return load("pdips.outside:NoisyMargins").read(self.home)

    def ask(self, question: str, **settings: Any) -> Any:
        """Answer a question, from the best source that the folder has.

        Parameters
        ----------
        question : str
            A formula, ``"enrolled ~ age * sex + log(wage)"``, or a summary:
            ``"mean(wage, by=['region'])"``, ``share``, ``total``, ``count``,
            ``quantile``, ``median``, ``sd`` or ``correlation``. The grammar is in
            ``docs/asking.md``.
        family : {"gaussian", "bernoulli", "binomial", "poisson"}
            Of a formula: least squares, or the canonical link. Left out it is that of
            a published posterior of this very question, else least squares.
        target : {"population", "table"}
            Of the population that the table is a random sample of, or of the table
            itself.
        missing : {"level", "drop"}
            Whether missing is a level of columns with levels, or records without one
            are left out. Records without a number that is asked for always are.
        weights : str, optional
            A column of numbers: how many members of the population a record stands
            for. Of all but quantiles and correlations, from sets.

        Returns
        -------
        Answer
            With ``summary()``, ``plot()``, ``source``, ``remarks`` and, where there is
            one, ``posterior``.

        Raises
        ------
        InputError
            If the question isn't in the grammar, nothing in the folder answers it, or
            the folder was changed since it was opened.

        Examples
        --------
        >>> schema = Schema.model_validate(
        ...     {"columns": {"ill": {"levels": ["no", "yes"]}}}
        ... )
        >>> table = Table(pd.DataFrame({"ill": ["no", "yes"] * 50}), schema)
        >>> Margins(epsilon=1_000).release(table)[0].publish("asked/public")
        >>> answer = open("asked").ask("share(ill == 'yes')")
        >>> answer.summary()["estimate"].round(2).tolist()
        [0.5]
        """
        return load("pdips.outside.asking:ask")(self, question, **settings)

    def factor(self, columns: Sequence[str] | str, expected: Any, **how: Any) -> Any:
        """Add what the noisy margins say of some columns to the PyMC model in context.

        Parameters
        ----------
        columns, expected, **how
            As of :meth:`pdips.NoisyMargins.factor`: ``dims``, ``target`` and ``name``.

        Returns
        -------
        TensorVariable
            The noisy contrasts of the columns' cells, jointly normal.

        Raises
        ------
        InputError
            As of :meth:`pdips.NoisyMargins.factor`, or if the release has no noisy
            margins.

        Examples
        --------
        >>> import pymc as pm
        >>> schema = Schema.model_validate(
        ...     {"columns": {"ill": {"levels": ["no", "yes"]}}}
        ... )
        >>> table = Table(pd.DataFrame({"ill": ["no", "yes"] * 50}), schema)
        >>> Margins(epsilon=1).release(table)[0].publish("factor/public")
        >>> with pm.Model() as model:
        ...     share = pm.Beta("share", 1, 1)
        ...     noisy = open("factor").factor("ill", [100 - 100 * share, 100 * share])
        >>> model.coords["margins_contrast"]
        ('ill[yes]',)
        """
        return self.margins.factor(columns, expected, **how)

    def mix(self, make: Callable[[pd.DataFrame], Any], **settings: Any) -> Any:
        """Fit a PyMC model to each synthetic set, and mix the draws by the rule that
        combines the sets (:func:`pdips.inference.rule_for`).

        Parameters
        ----------
        make : callable
            Takes a set, a DataFrame, and returns a ``pm.Model`` with the same variables
            for all sets.
        **settings
            Of ``pm.sample``: ``draws``, ``tune``, ``chains``, ``random_seed``.

        Returns
        -------
        DataTree
            With the group ``posterior``: a chain for each set. Each number has the law
            that the rule gives it, from its mean and variance in each set: free
            variables on the scale on which they are unconstrained, deterministic ones
            on their own. Numbers go together as in the posterior of a set.

        Raises
        ------
        InputError
            If no rule fits the sets, or the model differs between them.

        Warns
        -----
        UselessWarning
            If chains of some set don't converge, or the rule doesn't hold.

        Examples
        --------
        >>> import pymc as pm
        >>> def make(df):
        ...     with pm.Model() as model:
        ...         share = pm.Beta("share", 1, 1)
        ...         pm.Binomial("ill", len(df), share, observed=(df.ill == "yes").sum())
        ...     return model
        >>> schema = Schema.model_validate(
        ...     {"columns": {"ill": {"levels": ["no", "yes"]}}}
        ... )
        >>> table = Table(pd.DataFrame({"ill": ["no", "yes"] * 50}), schema)
        >>> Margins(epsilon=4, n_sets=3).release(table)[0].publish("mixed/public")
        >>> tree = open("mixed").mix(make, draws=500, chains=2, random_seed=1)
        >>> dict(tree.posterior.sizes)
        {'chain': 3, 'draw': 1000}
        """
        return load("pdips.outside.mixing:mix")(self, make, **settings)

    def more_sets(
        self, n_sets: int, *, rng: np.random.Generator | None = None
    ) -> list[pd.DataFrame]:
        """Draw more sets of the answers, at no cost: see
        :func:`pdips.more_sets`.
        """
        more: list[pd.DataFrame] = load("pdips.outside.replays:more_sets")(
            self.home, n_sets, rng=rng
        )
        return more

    def _read(self, number: int) -> pd.DataFrame:
        return self._table(f"synthetic_{number}")

    def _content(self, name: str) -> bytes:
        """Return what a file of the release holds, compared with its digest again."""
        content = read_bytes(self.home / name)
        if bytes_digest(content) != (self.privacy.digests or {})[name]:
            raise InputError(
                f"{self.home / name} was changed since it was opened; open it again"
            )
        return content

    def _table(self, stem: str) -> pd.DataFrame:
        """Read a table of the release."""
        digests = self.privacy.digests or {}
        names = [f"{stem}.{suffix}" for suffix in MAIN_SUFFIXES]
        name = next(name for name in names if name in digests)
        return parsed_table(self._content(name), name, self.privacy.table_schema)

    def __repr__(self) -> str:
        return (
            f"PublishedRelease({str(self.home)!r}, {self.privacy.mechanism}, "
            f"n_sets={self.privacy.n_sets}, signed_by={self.signed_by!r})"
        )


def open(directory: str | Path, *, key: str | Path | None = None) -> PublishedRelease:
    """Open a published release, if its files are those that were published.

    Parameters
    ----------
    directory : path
        The folder of a release, or its public folder alone.
    key : str or path, optional
        The public key of the office, as 64 hexadecimal digits or a file, which you got
        from the office itself: a key printed in the release proves nothing. Without it
        digests are compared, and who published the release isn't known.

    Returns
    -------
    PublishedRelease

    Raises
    ------
    InputError
        If the folder holds no published release, a file was changed, is missing or is
        not of the release, or the key hasn't signed it.

    Examples
    --------
    >>> schema = Schema.model_validate(
    ...     {"columns": {name: {"levels": [0, 1]} for name in "ab"}}
    ... )
    >>> table = Table(pd.DataFrame({"a": [0, 1] * 50, "b": [1] * 100}), schema)
    >>> Margins(epsilon=1).release(table)[0].publish("out/public")
    >>> release = open("out")
    >>> release.privacy.privacy.epsilon, len(release.sets)
    (1.0, 1)
    """
    wanted = None if key is None else public_key(key)
    home = public_home(Path(directory))
    examined = examine_public(home, wanted)
    if examined.document is None or examined.faults:
        raise InputError(
            f"{examined.faults[0]}; get the release again from who published it"
        )
    return PublishedRelease(home=home, privacy=examined.document, signed_by=wanted)


def public_home(directory: Path) -> Path:
    """Return the public folder of a release, which may be given itself."""
    for home in (directory / "public", directory):
        if (home / PrivacyDocument.file).is_file():
            return home
    raise InputError(
        f"{directory} holds no published release: it has no public/privacy.json, and "
        f"no privacy.json"
    )
