"""A model of noisy statistics: a file that declares them, models them in PyMC, draws
records; and its posterior.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.variable import TensorConstant

from pdips.convergence import Convergence
from pdips.data.schema import Schema
from pdips.errors import InputError, RefusedError
from pdips.posterior import nuts as sampling
from pdips.posterior.closures import check_closed
from pdips.posterior.inspection import chains_of
from pdips.posterior.model import quiet
from pdips.posterior.model_checks import (
    Tried,
    check_gradient,
    check_proper,
    check_unused,
)
from pdips.posterior.model_file import load
from pdips.posterior.nuts import SHORTEST_TUNING, agreeing, available
from pdips.posterior.streams import draws_by_name
from pdips.privacy.loss import Neighbours
from pdips.statistics.noisy_model import Evidence, Likelihood
from pdips.statistics.plan import NoisyStatistics, Statistic, shipped
from pdips.statistics.regression import draw_fits
from pdips.statistics.samplers import (
    Draws,
    Lengths,
    Sampler,
    SamplerDraws,
    priors_of_fits,
    recognise,
)
from pdips.statistics.statistic import Counts

Columns = Mapping[str, NDArray[Any]]

CONTRACT = {
    "statistics": "statistics(schema), which says what is counted and summed",
    "build_model": "build_model(given, schema), which returns a pm.Model of noisy "
    "statistics",
    "draw_records": "draw_records(draw, records, schema, rng), which returns columns "
    "drawn at one posterior draw",
}

# What the number of records is called where a model counts nothing else and the number
# is protected
TOTAL = "records"


@dataclass(frozen=True)
class RecordRequest:
    """The records that a model is to draw: how many, and public columns,
    ``records["x"]``, as models read them.
    """

    n: int
    public: Columns = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.public[name]


@dataclass(frozen=True)
class StatisticModel:
    """A model of noisy statistics: the functions of a model file (``docs/models.md``),
    its name and its source.
    """

    statistics: Callable[[Schema], Mapping[str, Statistic]] = field(repr=False)
    build_model: Callable[[Evidence, Schema], pm.Model] = field(repr=False)
    draw_records: Callable[
        [Draws, RecordRequest, Schema, np.random.Generator], Columns
    ] = field(repr=False)
    name: str = "model"
    text: str = field(default="", repr=False)
    draw_rest: (
        Callable[[Evidence, Draws, Schema, np.random.Generator], Draws] | None
    ) = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.name

    def declared(self, schema: Schema, neighbours: Neighbours) -> dict[str, Statistic]:
        """Return the statistics that the model declares for a schema, checked.

        Under add-remove the number of records is counted too, if nothing that is
        counted says it.
        """
        for function in (
            self.statistics,
            self.build_model,
            self.draw_records,
            self.draw_rest,
        ):
            if function is not None:
                check_closed(function, self.name, self.text)
        schema.refuse_rules()
        declared = shipped(self._call("statistics", self.statistics, schema), self.name)
        for statistic in declared.values():
            statistic.check(schema)
        counted = any(isinstance(each, Counts) for each in declared.values())
        if neighbours == "replace-one" or counted:
            return declared
        if TOTAL in declared:
            raise InputError(
                f"{self.name}: under add-remove {TOTAL!r} is the number "
                f"of records; rename that statistic"
            )
        return declared | {TOTAL: Counts()}

    def built(self, given: Evidence) -> pm.Model:
        """Return the model of some noisy statistics; refuse what is no model, has no
        parameters or improper priors.
        """
        with quiet():
            model = self._call("build_model", self.build_model, given, given.schema)
        if not isinstance(model, pm.Model):
            raise InputError(f"{self.name}: build_model must return a pm.Model")
        check_proper(model)
        if not model.free_RVs:
            raise InputError(
                f"{self.name}: build_model returns a model without parameters"
            )
        return model

    def records(
        self,
        draw: Draws,
        wanted: RecordRequest,
        schema: Schema,
        rng: np.random.Generator,
    ) -> Columns:
        """Return columns drawn at one posterior draw, checked for names and lengths."""
        found = self._call("draw_records", self.draw_records, draw, wanted, schema, rng)
        names = [name for name, column in schema.columns.items() if not column.public]
        if not isinstance(found, Mapping) or sorted(found) != sorted(names):
            raise InputError(
                f"{self.name}: draw_records must return the columns {', '.join(names)}"
            )
        for name in names:
            if np.shape(found[name]) != (wanted.n,):
                raise InputError(
                    f"{self.name}: draw_records returns column {name!r} "
                    f"of another length than asked for"
                )
        return found

    def completed(
        self, given: Evidence, draws: Draws, rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        """Return draws, shape (n_draws, ...), with those of ``draw_rest`` where the
        model has one, one a draw.
        """
        if self.draw_rest is None:
            return dict(draws)
        drawn = self._call("draw_rest", self.draw_rest, given, draws, given.schema, rng)
        if not isinstance(drawn, Mapping):
            raise InputError(f"{self.name}: draw_rest must return draws by name")
        found = {name: np.asarray(each) for name, each in drawn.items()}
        n_draws = len(next(iter(draws.values())))
        if any(np.shape(each)[:1] != (n_draws,) for each in found.values()):
            raise InputError(
                f"{self.name}: draw_rest must return one value for each "
                f"draw, along the first axis"
            )
        return {**draws, **found}

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except InputError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the analyst's own code; it sees public things only
            raise InputError(
                f"{self.name}: {name} failed: {type(error).__name__}: {error}"
            ) from None


def as_statistic_model(model: "str | Path | StatisticModel | Any") -> StatisticModel:
    """Return a model given as a file, the name of one that comes with pdips, a module
    or a :class:`StatisticModel`.
    """
    if isinstance(model, StatisticModel):
        return model
    module: Any = model
    text = ""
    name = getattr(model, "__name__", "model")
    if isinstance(model, (str, Path)):
        module, path = load(model)
        name = path.name
        text = path.read_text(encoding="utf-8")
    if hasattr(module, "draw_posterior"):
        raise InputError(
            f"{name} has a draw_posterior, which modips takes no more: the posterior "
            f"is that of build_model. Remove "
            "it; pdips draws models that it recognises faster than NUTS"
        )
    missing = [
        said
        for part, said in CONTRACT.items()
        if not callable(getattr(module, part, None))
    ]
    if missing:
        hint = (
            ("; a model of records is for censored-posterior")
            if len(missing) == 2
            else ""
        )
        raise InputError(
            f"{name} has no {'; no '.join(missing)}: modips needs all three{hint}"
        )
    rest = getattr(module, "draw_rest", None)
    return StatisticModel(
        module.statistics, module.build_model, module.draw_records, name, text, rest
    )


DRAWS = 1_000
TUNE = 1_000
CHAINS = 4
MOST_COMPILED = 8
# Independent draws beyond those that sets need, times the entries of the statistics
MOST_NUMBERS = 2_000_000
NOT_AGREED = (
    "the chains of {} don't agree on the posterior given the noisy statistics, so "
    "nothing is released; that says "
    "nothing but what these say, and they stay charged; use more tuning and draws, "
    "or try the model on made-up tables"
)

APART = 4  # Draws of chains for each draw that is taken
# What is drawn when a model is tried
SHORT = Lengths(draws=8, tune=8, chains=2, rounds=1)

_lock = threading.RLock()
_compiled = Tried(MOST_COMPILED)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A model, what a sampler compiled of it, and the sampler made for it, if there is
    one.
    """

    model: pm.Model
    compiled: dict[str, Any] = field(default_factory=dict)
    record_parameters: tuple[str, ...] = ()
    own: Sampler | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a release says of its posterior draws, as
    :class:`pdips.statistics.modips.Modips` has it.
    """

    draws: int | None = None
    tune: int | None = None
    chains: int | None = None
    nuts: sampling.Sampler = "auto"

    def given(self) -> list[str]:
        """Return the names of the options that a release gives."""
        named = {"draws": self.draws, "tune": self.tune, "n_chains": self.chains}
        return [name for name, value in named.items() if value is not None]

    def check(self, sampler: Sampler) -> None:
        """Refuse options that a sampler made for a model doesn't have."""
        unused = [name for name in self.given() if name not in sampler.options]
        by_whom = f"{sampler.name}, not by NUTS"
        check_unused(unused, by_whom, "nuts = nutpie or pymc")

    def lengths(self, n_draws: int, entries: int) -> Lengths:
        """Return how much a sampler made for a model draws."""
        draws = self.draws or min(DRAWS, max(MOST_NUMBERS // max(entries, 1), 1))
        return Lengths(
            draws=max(n_draws, draws),
            tune=self.tune or TUNE,
            chains=self.chains or CHAINS,
        )


@dataclass(frozen=True, eq=False)
class PosteriorFit:
    """Draws from the posterior given noisy statistics: public, for they are all that it
    depends on.
    """

    # shape (draws, ...): independent, or as far apart in chains as they can be
    draws: Draws
    # all draws: group ``posterior``, and ``sample_stats`` of chains by NUTS
    tree: xr.DataTree
    # how well chains agree; None where draws are independent
    convergence: Convergence | None = None

    def draw(self, number: int) -> dict[str, NDArray[Any]]:
        return {name: values[number] for name, values in self.draws.items()}


def fit(
    model: StatisticModel,
    measured: NoisyStatistics,
    likelihood: Likelihood,
    *,
    n_draws: int,
    rng: np.random.Generator,
    options: Options | None = None,
    trial: bool = False,
) -> PosteriorFit:
    """Draw from the posterior of a model given noisy statistics, by the sampler made
    for it or by NUTS.

    ``options`` say how much is drawn; it is more where ``n_draws`` needs it. A
    ``trial`` takes a few draws that needn't agree, or looks where NUTS would start. A
    model that can't be built raises :class:`InputError`, chains that agree in no round
    :class:`RefusedError`: that costs nothing and says nothing but what the noisy
    statistics say.
    """
    wanted = options or Options()
    given = Evidence(measured, likelihood)
    with _lock:
        built, kept = prepared(model, given)
    priors = priors_of_fits(given, model.name)
    drawn = None
    stats = None
    if kept.own is not None and wanted.nuts == "auto":
        if trial:
            wanted.check(kept.own)
        entries = sum(len(values) for values in measured.values.values())
        lengths = SHORT if trial else wanted.lengths(n_draws, entries)
        drawn = by_own(built, kept, given, lengths, rng)
    if drawn is None and trial:
        at_start = _at_start(model.name, built, given, wanted, n_draws)
        completed = model.completed(given, at_start, rng)
        return PosteriorFit(completed, chains_of(completed))
    if drawn is None:
        with _lock:
            drawn, stats = _by_nuts(
                model.name, built, kept, given, wanted, n_draws, rng
            )
    agreement = None if trial else drawn.convergence
    if agreement is not None and not agreement.passed:
        raise RefusedError(NOT_AGREED.format(model.name))
    with_fits = draw_fits(given, priors, drawn.values, rng)
    completed = model.completed(given, with_fits, rng)
    tree = chains_of(completed, drawn.chains)
    if stats is not None:
        tree["sample_stats"] = xr.DataTree(stats)
    taken = np.arange(n_draws)
    if agreement is not None:
        total = len(next(iter(completed.values())))
        taken = sampling.far_apart(total, n_draws, rng)
    draws = {name: values[taken] for name, values in completed.items()}
    return PosteriorFit(draws, tree, agreement)


def prepared(model: StatisticModel, given: Evidence) -> tuple[pm.Model, Compiled]:
    """Return the model of some noisy statistics, and what was compiled for others of
    the same kind, or of this one.

    What isn't ``pm.Data`` must be equal: a model file that makes constants of noisy or
    public numbers is compiled anew.
    """
    built = model.built(given)
    measured = given.measured
    shapes = tuple(
        (part.name, len(measured.values[part.name]), part.law, part.n_noised)
        for part in measured.parts
    )
    data = tuple(
        (variable.name, variable.get_value(borrow=True).shape)
        for variable in sorted(built.data_vars, key=attrgetter("name"))
    )
    source = model.text or model.build_model
    public = (given.schema.to_toml(), given.likelihood, measured.n_records)
    names = tuple(built.named_vars)
    key = (source, *public, shapes, data, names, _digest_of_constants(built))
    return built, _compiled.once(
        key, lambda: Compiled(built, own=recognise(built, given))
    )


def _digest_of_constants(model: pm.Model) -> str:
    """Return a hash of all numbers that a model's graphs hold, but for its data."""
    graphs = [*model.basic_RVs, *model.deterministics, *model.potentials]
    digest = hashlib.sha256()
    for node in graph_inputs(graphs):
        if isinstance(node, TensorConstant):
            digest.update(f"{node.data.dtype} {node.data.shape}".encode())
            digest.update(np.ascontiguousarray(node.data).tobytes())
    return digest.hexdigest()


def _set(built: pm.Model, kept: Compiled) -> None:
    """Give the compiled model the data of the one just built."""
    if kept.model is not built:
        values = {variable.name: variable.get_value() for variable in built.data_vars}
        pm.set_data(values, model=kept.model)


def by_own(
    built: pm.Model,
    kept: Compiled,
    given: Evidence,
    lengths: Lengths,
    rng: np.random.Generator,
) -> SamplerDraws | None:
    """Return draws by the sampler made for a model, with its deterministic variables;
    None where it can't.
    """
    own = kept.own
    drawn = None if own is None else own.draw(given, lengths, rng)
    if own is None or drawn is None:
        return None
    with _lock:
        _set(built, kept)
        worked_out = own.completed(drawn.values)
    free = {str(variable.name) for variable in kept.model.free_RVs}
    values = {name: drawn.values[name] for name in own.drawn if name in free}
    return replace(drawn, values={**values, **worked_out})


def _by_nuts(
    name: str,
    built: pm.Model,
    kept: Compiled,
    given: Evidence,
    options: Options,
    n_draws: int,
    rng: np.random.Generator,
) -> tuple[SamplerDraws, xr.Dataset]:
    """Return draws of chains that agree, and what the sampler says of them."""
    _set(built, kept)
    chains = options.chains or CHAINS
    settings: dict[str, Any] = {
        "start": start_of(built),
        "chains": chains,
        "rng": rng,
        "sampler": options.nuts,
    }
    lengths = {
        "draws": max(options.draws or DRAWS, -(-APART * n_draws // chains)),
        "tune": options.tune or TUNE,
    }
    watch = [
        variable.name
        for variable in built.free_RVs
        if variable.name not in given.latents
    ]
    try:
        tree, agreement = agreeing(
            kept, watch, confidential=False, **lengths, **settings
        )
    except InputError:
        raise
    except RefusedError:
        raise RefusedError(NOT_AGREED.format(name)) from None
    except Exception as error:  # noqa: BLE001 - whatever a model's graph raises, it has seen public numbers only
        raise RefusedError(
            f"{name} can't be fitted to these noisy statistics "
            f"({type(error).__name__}): with so few "
            "records, or so much noise, they may not suit it; they stay charged"
        ) from None
    shown = {str(variable.name) for variable in _shown(built, given)}
    values = {
        name: draws for name, draws in draws_by_name(tree).items() if name in shown
    }
    drawn = SamplerDraws(values=values, chains=chains, convergence=agreement)
    return drawn, tree["sample_stats"].to_dataset()


def _shown(model: pm.Model, given: Evidence) -> list[Any]:
    """Return the variables that a model's author wrote, and none that stands for
    something exact or for noise.
    """
    return [
        variable
        for variable in (*model.free_RVs, *model.deterministics)
        if variable.name not in given.latents
    ]


def start_of(model: pm.Model) -> dict[str, NDArray[Any]]:
    """Return where chains start, on the unconstrained scale."""
    point = model.initial_point(random_seed=0)
    return {value.name: np.asarray(point[value.name]) for value in model.value_vars}


def _at_start(
    name: str, built: pm.Model, given: Evidence, options: Options, n_draws: int
) -> Draws:
    """Return the variables of a model where chains start, shape (n_draws, ...), if NUTS
    can start there.
    """
    available(built, options.nuts)
    if options.tune is not None and options.tune < SHORTEST_TUNING:
        raise InputError(f"tune must be at least {SHORTEST_TUNING}, got {options.tune}")
    start = start_of(built)
    check_gradient(name, built, [start])
    named = _shown(built, given)
    graphs = built.replace_rvs_by_values(named)
    values = built.compile_fn(
        graphs, inputs=built.value_vars, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    return {
        str(variable.name): np.stack([value] * n_draws)
        for variable, value in zip(named, values(start), strict=True)
    }
