"""The front door for a model: from a PyMC model as people write it, a table and a price
to a posterior as an ArviZ tree.
"""

import hashlib
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pdips.convergence import ESS, RHAT, converged
from pdips.conversion.convert import converted_conditioned, converted_model
from pdips.conversion.formula_priors import check_typed
from pdips.conversion.formula_settings import FormulaSettings
from pdips.conversion.formulas import maker_of
from pdips.conversion.frames import MadeUp
from pdips.data.databases import snapshot
from pdips.data.schema import Records, Schema
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.groups.design import n_values
from pdips.groups.formulas import groups_in_formula, template_for
from pdips.groups.group_sums import GroupSums
from pdips.html import show_progress
from pdips.mechanism import Mechanism
from pdips.posterior import model_file
from pdips.posterior.closures import check_closed, source_of
from pdips.posterior.model_file import Source, as_source, declared_by
from pdips.privacy.account import Request
from pdips.privacy.charge import (
    open_entry,
    reserved,
    reserved_to_read,
    settled_answers,
)
from pdips.privacy.curator import Clock
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Number
from pdips.registry import find
from pdips.release.public_draws import (
    HELD_BACK,
    REFERENCE_APART,
    REFERENCE_FAR,
    contradiction,
    held_back_by_priors,
)
from pdips.release.tree import public_tree
from pdips.scores.posterior import MOST_K, attempt
from pdips.scores.scores import MOST_PARAMETERS, Scores
from pdips.synthesis import ReleaseJob, as_schema, as_table

LOG = logging.getLogger("pdips")
MAKE = "make"


def sample(
    model: Any,
    data: Any,
    schema: Any,
    *,
    epsilon: Number,
    delta: Number | None = None,
    public: str | Sequence[str] = (),
    sets: int = 0,
    ledger: Ledger | str | Path | None = None,
    public_constants: bool = False,
    seed: int | np.random.Generator | None = None,
    allow: Collection[str] = (),
    resume: int | None = None,
    progress: bool = True,
    mechanism: str | None = None,
    **options: Any,
) -> xr.DataTree:
    """Sample the posterior of a PyMC model under differential privacy.

    Parameters
    ----------
    model : callable, str, path, bambi.Model, pymc.Model or Source
        A function ``make(df)`` that returns a ``pm.Model`` with observed variables, as
        people write it; a formula, such as ``"y ~ x + (1 | g)"``, or a ``bmb.Model``;
        a function ``build_model(data, schema)``; a file with one of the two functions;
        the name of a model that comes with pdips; or a ``pm.Model`` that is
        conditioned on the table, see ``public_constants``.
    data : DataFrame, dict, pyarrow.Table, path or Table
        The confidential table.
    schema : Schema, dict or path
        What is public about it.
    epsilon : int, float, str or Fraction
        Privacy loss in total, in nats.
    delta : int, float, str or Fraction, optional
        For Gaussian noise, read at this delta; left out, Laplace noise and a delta
        of 0.
    public : str or sequence of str
        Columns that everybody may know, beside those that the schema calls public:
        covariates and groups.
    sets : int
        How many synthetic sets are drawn too.
    ledger : Ledger or path, optional
        The account that is charged.
    public_constants : bool
        Says of a ``pm.Model`` that is conditioned on the table itself that its
        constants and the labels of its coords are public, but for the columns of the
        table: no mean, scale, knot or order of levels in it was worked out of
        confidential records. Of a function, that numbers from outside of its code are
        public though they have many digits.
    seed, allow, resume, progress
        As in :func:`pdips.synthesize`.
    mechanism : str, optional
        One that takes a model and publishes a posterior. Left out: that of scores, or
        where a mixed model has more groups than it takes, that of group sums
        (:class:`pdips.groups.group_sums.GroupSums`).
    **options
        ``neighbours``, ``draws``, ``tune`` and whatever else
        :class:`pdips.scores.scores.Scores` takes; with a formula ``family``,
        ``priors`` and other settings of Bambi
        (:func:`pdips.conversion.formulas.maker_of`).

    Returns
    -------
    xarray.DataTree
        All that is public: see :func:`pdips.release.tree.public_tree`.

    Raises
    ------
    InputError
        If the model, the schema, the table or a setting is not as it must be; the
        message says what to write instead.
    RefusedError
        If the ledger's total would be overspent.

    Notes
    -----
    ``make`` is handed no confidential value: it is called with the public columns as
    they are and confidential ones made up from the schema. What it reads from outside
    of its code may be functions and a few short numbers and words. What it works out of
    several confidential records (a mean, knots at quantiles, ranks) is found by
    comparing what it makes of other made-up records, and refused.

    Examples
    --------
    >>> import pymc as pm
    >>> def make(df):
    ...     with pm.Model() as model:
    ...         b = pm.Normal("b", 0, 10, shape=2)
    ...         pm.Normal("y", b[0] + b[1] * df["x"].values, 1, observed=df["y"].values)
    ...     return model
    >>> x = np.linspace(-3, 3, 500)
    >>> frame = pd.DataFrame({"x": x, "y": 1 + 2 * x + np.sin(40 * x)})
    >>> schema = Schema(
    ...     columns={"x": Column(lower=-6, upper=6), "y": Column(lower=-20, upper=20)}
    ... )
    >>> tree = sample(make, frame, schema, epsilon=1, public=["x"])
    >>> list(tree["posterior"].data_vars)
    ['b']
    """
    known = as_schema(schema).known([public] if isinstance(public, str) else public)
    if sets < 0:
        raise InputError(f"sets must be at least 0, got {sets}")
    if isinstance(data, Table):
        data = _records_of(data)
    if ledger is not None and not isinstance(ledger, Ledger):
        ledger = Ledger(ledger)
    if isinstance(model, pm.Model):
        _check_said(public_constants)
    if delta is not None:
        options["delta"] = delta
    build = mechanism_of(model, known, mechanism)
    by_group = build is GroupSums
    written = None
    if not by_group:
        written = written_model(model, known, options, public_constants)
    if by_group:
        source = source_of_groups(model, known, options, public_constants)
    elif isinstance(model, pm.Model):
        if _neighbours(options) == "add-remove":
            raise InputError(
                "a conditioned model shows the number of records, so neighbours = "
                "add-remove doesn't go with it: hand over the function that makes it"
            )
        with _charged(
            ledger,
            _request_before(build, known, {"epsilon": epsilon, **options}),
            allow,
            resume,
        ):
            source = source_of_conditioned(model, data, known, ledger, resume)
    elif written is not None:
        with reserved_to_read(
            ledger, known, _neighbours(options), explain=True, allow=allow
        ):
            source = written.source(data, known)
    else:
        source = as_source(model)
    if source.converted is not None:
        known = source.converted.narrowed(known)
    options |= {"epsilon": epsilon, "model": source, "n_sets": max(sets, 1)}
    released_by = build(**options)
    with show_progress(quiet=not progress) as told:
        job = ReleaseJob(
            mechanism=released_by,
            schema=known,
            table=data,
            seed=seed,
            ledger=ledger,
            explain=True,
            allow=allow,
            clock=Clock(told),
            resume=resume,
        )
        _, release, record = job.run()
    tree = public_tree(release, record)
    tell_of(tree)
    return tree


def _charged(
    ledger: Ledger | None,
    before: Request,
    allow: Collection[str],
    resume: int | None,
) -> AbstractContextManager[None]:
    """Hold the price of a release whose model is conditioned on the table, or look
    whether its charge is there to be resumed.
    """
    if ledger is None or resume is None:
        return reserved(ledger, before, explain=True, allow=allow)
    open_entry(ledger, resume)
    return ledger.resuming(allow)


def _neighbours(options: Mapping[str, Any]) -> str:
    """Return the relation that settings of a mechanism name, or the usual one."""
    return str(options.get("neighbours", Mechanism.neighbours))


def _request_before(
    build: type[Mechanism], schema: Schema, settings: dict[str, Any]
) -> Request:
    """Return the price that is reserved before a conditioned model is looked at."""
    if not issubclass(build, Scores):
        raise InputError(
            f"{build.name} takes no model that is conditioned on the table: hand over "
            f"the function that makes it, or leave mechanism out"
        )
    return build(**settings).request_before(schema)


def mechanism_of(
    model: Any, schema: Schema, name: str | None = None
) -> type[Mechanism]:
    """Return the mechanism of a model: the one that is named, or the one that suits its
    number of groups.
    """
    if name is not None:
        build = find(name)
        if "model" not in build.__dataclass_fields__:
            raise InputError(f"{name} takes no model")
        if build.offers.sets_share != "posterior":
            raise InputError(f"{name} publishes no posterior: leave mechanism out")
        return build
    n_parameters = 0
    for group, n_effects in groups_in_formula(model).items():
        if group in schema.columns:
            n_parameters += n_effects * n_values(schema.columns[group])
    return GroupSums if n_parameters > MOST_PARAMETERS else Scores


def source_of_groups(
    model: Any,
    schema: Schema,
    options: dict[str, Any],
    public_constants: bool = False,
) -> Source:
    """Return a mixed model in the form that group sums take: made on made-up records of
    few groups, so that it doesn't matter how many there are, and no record is read.
    """
    template = template_for(model, schema)
    written = written_model(model, template, options, public_constants)
    if written is None:
        raise InputError(
            "group sums take a formula or a function make(df), in which the groups can "
            "be looked for: write the model so"
        )
    return written.source(None, template)


def tell_of(tree: xr.DataTree) -> None:
    """Say so where the draws say less than they seem to. Nothing may fail any more: the
    release is paid for.
    """
    against = contradiction(tree["posterior"].attrs)
    if against is not None:
        LOG.warning(
            "the noisy answers contradict the model (they would be as far off %.2g of "
            "the time if it were right): %s, so its intervals are not what they seem",
            against.share,
            against.reason,
        )
    apart = tree["posterior"].attrs.get(REFERENCE_APART, 0.0)
    if apart > REFERENCE_FAR:
        LOG.warning(
            "the last scores were taken %.1f standard deviations of one record from "
            "what all noisy answers make most probable (at most %g is near), so "
            "intervals may be far off: say score_rounds=3, narrow the priors, or take "
            "a larger epsilon",
            apart,
            REFERENCE_FAR,
        )
    held_back = held_back_by_priors(tree)
    if held_back:
        LOG.warning(
            "the posterior of %s is more than %g standard deviations of its prior from "
            "the prior's mean: the prior holds back what the noisy numbers say; if "
            "such values may be, give it a wider one",
            " and ".join(held_back),
            HELD_BACK,
        )
    told = tree["posterior"].attrs
    if tree.attrs["sampler"] == "importance" and told.get("pareto_k", 0.0) > MOST_K:
        LOG.warning(
            "the draws stand for few independent ones (Pareto k %.2f, above %.1f), and "
            "are spread wider than the posterior: write groups centred, "
            "pm.Normal('a', mu, tau), narrow the priors, or take more records or a "
            "larger epsilon",
            told["pareto_k"],
            MOST_K,
        )
    if tree.attrs["sampler"] == "nuts":
        attempt(_tell_of_chains, tree)


def _tell_of_chains(tree: xr.DataTree) -> None:
    """Say what NUTS stands in for, and whether its chains agree."""
    told = tree["posterior"].attrs
    if "effective" in told:
        LOG.warning(
            "the draws are those of NUTS, with a likelihood that is linear about the "
            "most probable parameters: weighted draws were worth %.0f independent ones "
            "(Pareto k %.2f). Where the posterior is bent intervals may be off: narrow "
            "the priors, say score_rounds=3, or take more records or a larger epsilon",
            told["effective"],
            told.get("pareto_k", np.inf),
        )
    chains = converged(tree)
    if not chains.passed:
        LOG.warning(
            "the chains of NUTS don't agree (largest R-hat %.3f, at most %g; %.0f "
            "effective draws, at least %d; %d divergences), so intervals are not what "
            "they seem: narrow the priors, or raise tune and draws",
            chains.largest_rhat,
            RHAT,
            min(chains.smallest_ess_bulk, chains.smallest_ess_tail),
            ESS,
            chains.divergences,
        )


def _check_said(public_constants: bool) -> None:
    """Refuse a model that holds the table, unless it is said what in it is public."""
    if public_constants is not True:
        raise InputError(
            "a pm.Model holds the records that it was built on, and constants that may "
            "be worked out of them: hand over the function that makes it, make(df), "
            "which is called with made-up records; or say public_constants=True if "
            "nothing in the model but its observed columns follows from confidential "
            "records"
        )


def source_of_conditioned(
    model: pm.Model,
    data: Any,
    schema: Schema,
    ledger: Ledger | None = None,
    resume: int | None = None,
) -> Source:
    """Return a model that is conditioned on a table in the form that mechanisms
    take.

    Its name tells one model from another, so that a release is resumed with the same
    one, but nobody can guess by it what the model holds: it takes the ledger's private
    key to make the name. Without a ledger nothing is resumed. A model is looked at
    beside the table of the charge ``resume`` alone.
    """
    with snapshot(data) as lent:
        table = as_table(lent, schema, counted=False)
    if ledger is not None and resume is not None:
        journal = ledger.journal_of(open_entry(ledger, resume))
        settled_answers(ledger, resume, journal, table.fingerprint)
    try:
        converted = converted_conditioned(model, table)
    except InputError as error:
        # an answer about the table, which counts as a refusal for what it holds
        raise DataError(str(error)) from None
    name = "conditioned model"
    if ledger is not None:
        _, signature = ledger.sign(f"model {converted.digest}".encode())
        keyed = hashlib.sha256(signature.encode()).hexdigest()
        name = f"{name} {keyed[:12]}"
    return Source(converted.build, name, "", converted=converted)


@dataclass(frozen=True, eq=False)
class WrittenFunction:
    """A model that is written as ``make(df)``."""

    make: Callable[..., pm.Model]
    name: str
    text: str  # the Python source, or the formula: public
    watch: tuple[str, ...] = ()
    public_potentials: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """What messages call it: a formula, or the name of a function or a file."""
        is_formula = self.name == "formula" and self.text.strip()
        return self.text.strip().splitlines()[0] if is_formula else self.name

    def source(self, data: Any, schema: Schema) -> Source:
        """Return the model in the form that mechanisms take, made with the public
        columns of a table.
        """
        public = public_part(data, schema) if schema.public_columns else None
        converted = converted_model(self.make, MadeUp(schema, public), self.name)
        return Source(
            converted.build,
            self.name,
            self.text,
            watch=self.watch,
            public_potentials=self.public_potentials,
            converted=converted,
        )


def written_model(
    model: Any,
    schema: Schema,
    options: dict[str, Any],
    public_constants: bool = False,
) -> WrittenFunction | None:
    """Return a model that is written as ``make(df)`` or as a formula, None where it is
    of another form. Settings of a formula are taken out of the options.
    """
    if _is_formula(model):
        names = [each.name for each in fields(FormulaSettings)]
        settings = {name: options.pop(name) for name in names if name in options}
        make = maker_of(model, schema, public_constants=public_constants, **settings)
        return WrittenFunction(make, "formula", make.text)
    if isinstance(model, (str, Path)):
        return _written_in_file(model, public_constants)
    if isinstance(model, Source | pm.Model):
        return None
    _check_function(model)
    if _takes_frame(model):
        name = getattr(model, "__name__", MAKE)
        check_typed(check_closed(model, name), name, public_constants)
        return WrittenFunction(
            model, name, source_of(model, name), **declared_by(model)
        )
    return None


def _check_function(model: Any) -> None:
    """Refuse what can make no model."""
    wanted = (
        "a model is a function make(df) that returns a pm.Model, a formula, a "
        "bmb.Model, a file, or the name of a model that comes with pdips"
    )
    if isinstance(model, type) or not callable(model):
        said = model.__name__ if isinstance(model, type) else type(model).__name__
        raise InputError(f"{wanted}, and not {said}")
    try:
        inspect.signature(model).bind(None)
    except ValueError:
        return  # a signature that can't be read
    except TypeError:
        try:
            inspect.signature(model).bind(None, None)
        except TypeError:
            name = getattr(model, "__name__", MAKE)
            raise InputError(
                f"{wanted}: {name} takes neither one argument, the frame, nor two, "
                f"data and schema"
            ) from None


def _is_formula(model: Any) -> bool:
    """Whether a model is a formula, several, or Bambi's."""
    if isinstance(model, str):
        return "~" in model
    is_of_bambi = type(model).__module__.partition(".")[0] == "bambi"
    return isinstance(model, (list, tuple)) or is_of_bambi


def _written_in_file(
    model: str | Path, public_constants: bool
) -> WrittenFunction | None:
    module, path = model_file.load(model)
    make = getattr(module, MAKE, None)
    others = ("build_model", "statistics")
    if not callable(make) or any(callable(getattr(module, n, None)) for n in others):
        return None
    text = path.read_text(encoding="utf-8")
    held = check_closed(make, path.name, text)
    check_typed(held, path.name, public_constants)
    return WrittenFunction(make, path.name, text, **declared_by(module))


def _records_of(table: Table) -> Any:
    """Return the records of a table, or refuse one that was counted."""
    if table.counts is not None:
        raise InputError(
            "the Table was counted, and a model needs records: read it with "
            "counted=False"
        )
    return table.frame


def _takes_frame(model: Any) -> bool:
    """Whether a function takes one argument, the frame, rather than ``(data,
    schema)``.
    """
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) == 1


def public_part(data: Any, schema: Schema) -> Table:
    """Return the public columns of a table that is given as :func:`sample` takes it;
    nothing else is looked at.
    """
    alone = schema.only(schema.public_columns).model_copy(
        update={"records": Records(), "members": None, "ignore": True}
    )
    with snapshot(data) as lent:
        return as_table(lent, alone, counted=False).public_part()
