"""One model of the gallery, from its text to a private posterior."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import arviz as az
import numpy as np
import xarray as xr

import pdips
from benchmarks.gallery.entries import Entry, Truth, Written
from benchmarks.gallery.families import check
from pdips.errors import InputError
from pdips.release.public_draws import MISFIT

EPSILON = 2
DELTA = "1e-6"
SEED = 20261130
INSIDE = (0.025, 0.975)

ACCEPTED = "accepted"
TAKEN = "taken"  # by all checks before a record is read; not released
REFUSED = "refused"
FAILED = "failed"
AS_WRITTEN = "as written"
AMENDED = "amended"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a model.

    Parameters
    ----------
    name, form, ending : str
        Of the entry; :data:`AS_WRITTEN` or :data:`AMENDED`; one of the endings above.
    sentence : str
        Of a refusal.
    to_plan, release : float
        Seconds until records were read, and from then on.
    cpu : float
        CPU seconds of both.
    sampler : str
        What drew the posterior.
    n_parameters : int
        Scalars in the posterior.
    effective : float
        Independent draws that the posterior is worth: the least bulk effective size
        of NUTS, or that of the weights.
    rhat : float
        The largest, of NUTS.
    covered, n_known : int
        How many 95 % intervals hold the parameter of the simulation, and how many
        parameters that knows.
    misfit : float
        How often the noisy answers would be as far off if the model is right.
    """

    name: str
    form: str
    ending: str
    sentence: str = ""
    to_plan: float = 0.0
    release: float = 0.0
    cpu: float = 0.0
    sampler: str = ""
    n_parameters: int = 0
    effective: float = 0.0
    rhat: float = 1.0
    covered: int = 0
    n_known: int = 0
    misfit: float = 1.0

    def as_plain(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return asdict(self)


def outcome(entry: Entry, form: str, *, only_check: bool = False) -> Outcome:
    """Release the posterior of a model of simulated records, or do only what comes
    before a record is read; say what came of it.
    """
    written = entry.written if form == AS_WRITTEN else entry.amended
    if written is None:
        raise ValueError(f"{entry.name} has no other form")
    started = time.perf_counter()
    started_cpu = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if only_check:
                _check(entry, written)
                return Outcome(
                    name=entry.name,
                    form=form,
                    ending=TAKEN,
                    cpu=time.process_time() - started_cpu,
                )
            tree, truth = _released(entry, written)
    except InputError as error:
        return Outcome(
            name=entry.name,
            form=form,
            ending=REFUSED,
            sentence=str(error),
            to_plan=time.perf_counter() - started,
            cpu=time.process_time() - started_cpu,
        )
    except Exception as error:  # noqa: BLE001 - whatever fails is a row of the table
        line = next(iter(str(error).splitlines()), "")
        return Outcome(
            name=entry.name,
            form=form,
            ending=FAILED,
            sentence=f"{type(error).__name__}: {line}",
            to_plan=time.perf_counter() - started,
            cpu=time.process_time() - started_cpu,
        )
    release = sum(tree.pdips.record.seconds.values())
    covered, n_known = _covered(tree["posterior"].to_dataset(), truth)
    return Outcome(
        name=entry.name,
        form=form,
        ending=ACCEPTED,
        to_plan=time.perf_counter() - started - release,
        release=release,
        cpu=time.process_time() - started_cpu,
        covered=covered,
        n_known=n_known,
        **_of_draws(tree),
    )


def _check(entry: Entry, written: Written) -> None:
    rng = np.random.default_rng(SEED)
    frame, _ = entry.simulate(rng, entry.n_records)
    schema = pdips.Schema(columns=entry.columns)
    check(written.model, schema, written.settings, frame)


def _released(entry: Entry, written: Written) -> tuple[xr.DataTree, Truth]:
    rng = np.random.default_rng(SEED)
    frame, truth = entry.simulate(rng, entry.n_records)
    tree = pdips.sample(
        written.model,
        frame,
        {"columns": entry.columns},
        epsilon=EPSILON,
        delta=DELTA,
        seed=rng,
        progress=False,
        **written.settings,
    )
    return tree, truth


def _of_draws(tree: xr.DataTree) -> dict[str, Any]:
    """Return what the draws of a posterior are worth."""
    posterior = tree["posterior"]
    sampler = str(tree.attrs["sampler"])
    draws = posterior.to_dataset()
    if sampler == "nuts":
        rhat = _extreme(az.rhat(draws), np.nanmax)
        effective = _extreme(az.ess(draws), np.nanmin)
    else:
        # independent draws with weights
        rhat = 1.0
        effective = posterior.attrs["effective"]
    sizes = [draws[name].isel(chain=0, draw=0).size for name in draws.data_vars]
    return {
        "sampler": sampler,
        "n_parameters": sum(sizes),
        "effective": float(effective),
        "rhat": rhat,
        "misfit": float(posterior.attrs.get(MISFIT, 1.0)),
    }


def _extreme(of_variables: Mapping[Any, Any], extreme: Any) -> float:
    dataset = getattr(of_variables, "dataset", of_variables)
    return float(extreme([extreme(each.to_numpy()) for each in dataset.values()]))


def _covered(posterior: xr.Dataset, truth: Truth) -> tuple[int, int]:
    """Return how many intervals hold the truth, and of how many parameters it is
    known.
    """
    n_covered = 0
    n_known = 0
    for name, value in truth.items():
        if name not in posterior:
            continue
        draws = posterior[name].stack(sample=("chain", "draw")).transpose("sample", ...)
        lower, upper = np.quantile(draws.to_numpy(), INSIDE, axis=0)
        known = np.asarray(value, dtype=float)
        if known.size < np.size(lower):
            continue
        n_covered += int(np.sum((lower <= known) & (known <= upper)))
        n_known += known.size
    return n_covered, n_known
