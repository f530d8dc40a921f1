"""Run the tasks of a study, on all cores or on a dask cluster, and keep each result as
soon as it is there.

Every task has a file of its own under DIR/replicates, renamed into place when it is
whole, so that a run that was killed goes on where it stopped.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from pdips import __version__
from pdips.data.partitions import LOCAL, client_of
from pdips.errors import InputError, RefusedError
from pdips_papers.harness.study import Options, Study, Task, derive_seed

Tell = Callable[[int, int], None]
"""Told how many tasks are done, of how many."""

SETTINGS = "settings.json"


def measure(
    study: Study,
    options: Options,
    out: Path,
    *,
    seed: int = 1,
    workers: int | None = None,
    scheduler: str | None = None,
    tell: Tell | None = None,
) -> pd.DataFrame:
    """Run what is missing of a study and return all its measurements.

    Parameters
    ----------
    study : Study
        What to run.
    options : Options
        What was asked for.
    out : path
        Folder of the study; results are kept in ``replicates`` below it.
    seed : int
        From which the seed of every task is derived.
    workers : int, optional
        Number of processes; all cores by default. With 0 the tasks run in this process.
    scheduler : str, optional
        Address of a dask scheduler to use in place of processes on this machine.
    tell : callable, optional
        Told after each task.

    Returns
    -------
    DataFrame
        One measurement a row, in the order of the tasks, with the task's key in
        ``task``.

    Raises
    ------
    InputError
        If the study takes no data or needs some, the folder holds something else or a
        run with other settings, or the number of workers is below 0.
    """
    if options.data is not None and study.data == "none":
        raise InputError(f"study {study.name} simulates its data and takes no --data")
    if options.data is None and study.data == "required":
        raise InputError(f"study {study.name} needs a table: --data T{study.needs}")
    if workers is not None and workers < 0:
        raise InputError(f"the number of workers must be at least 0, got {workers}")
    tasks = study.tasks(options)
    if len({task.key for task in tasks}) < len(tasks):
        raise ValueError("two tasks of a study have the same key")
    settings = {
        "study": study.name,
        "replicates": options.replicates,
        "epsilons": list(options.epsilons),
        "data": None
        if options.data is None
        else hashlib.sha256(options.data.read_bytes()).hexdigest(),
        "seed": seed,
        "version": __version__,
    }
    home = _open_folder(out, settings, confidential=options.data is not None)
    done = {}
    missing = []
    for task in tasks:
        stored = _stored(home, task)
        if stored is None:
            missing.append((task, derive_seed(study.name, seed, task.key)))
        else:
            done[task.key] = stored
    tell = tell or (lambda done, total: None)
    tell(len(done), len(tasks))
    if missing:
        with _results(study, missing, workers, scheduler) as results:
            for task, result in results:
                content = {"arguments": dict(task.arguments), **result}
                _write(home / f"{task.key}.json", content)
                done[task.key] = result
                tell(len(done), len(tasks))
    rows = [
        {"task": task.key, **row}
        for task in tasks
        for row in done[task.key]["measurements"]
    ]
    return pd.DataFrame(rows)


def seconds(out: Path) -> float:
    """Return the computing time of all stored tasks together, in seconds."""
    spent = []
    for path in (out / "replicates").glob("*.json"):
        if path.name != SETTINGS:
            task = json.loads(path.read_text(encoding="utf-8"))
            spent.append(float(task["seconds"]))
    return math.fsum(spent)


def _open_folder(out: Path, settings: Mapping[str, Any], *, confidential: bool) -> Path:
    """Return the folder of results, made if there is none, and refuse one of other
    settings.
    """
    home = out / "replicates"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder")
    if (home / SETTINGS).is_file():
        stored = _read(home / SETTINGS) or {}
        for name, value in settings.items():
            if stored.get(name) != value:
                what = f"{name} = {stored.get(name)}, not {value}"
                if name == "data":
                    what = "another table"
                raise InputError(
                    f"{out} holds a run with {what}; use the same settings to go on, "
                    f"or name another folder"
                )
        return home
    if out.is_dir() and any(path.name != "replicates" for path in out.iterdir()):
        raise InputError(
            f"{out} holds something other than a study; name another folder"
        )
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700 if confidential else 0o755)
        if confidential:
            out.chmod(0o700)  # of a folder that was there, too
        home.mkdir(exist_ok=True)
        _write(home / SETTINGS, settings)
    except OSError as error:
        raise InputError(f"can't write in {out}: {error.strerror}") from None
    return home


def _stored(home: Path, task: Task) -> dict[str, Any] | None:
    """Return a result that is there already, unless it is damaged or of a task with
    other arguments.
    """
    found = _read(home / f"{task.key}.json")
    plain = json.loads(json.dumps(dict(task.arguments), default=_plain))
    return found if found is not None and found.get("arguments") == plain else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is there whole or not at all."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(json.dumps(content, default=_plain), encoding="utf-8")
    hidden.replace(path)


def _plain(value: Any) -> Any:
    """Turn a number or array of numpy into what JSON can hold."""
    return value.tolist()


def perform(study: Study, arguments: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Run one task and time it. Runs on a worker."""
    start = time.perf_counter()
    try:
        measurements = study.run(arguments, seed)
    except (InputError, RefusedError):
        raise
    except Exception as error:
        if "data" not in arguments or os.environ.get("PDIPS_TRACEBACK"):
            raise
        # A message from deep inside may quote a value of the table, and a scheduler's
        # workers would log it.
        raise RuntimeError(
            f"{type(error).__name__} in a task; PDIPS_TRACEBACK=1 shows where"
        ) from None
    return {
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "measurements": measurements,
    }


@contextmanager
def _results(
    study: Study,
    missing: Sequence[tuple[Task, int]],
    workers: int | None,
    scheduler: str | None,
) -> Iterator[Iterator[tuple[Task, dict[str, Any]]]]:
    """Lend the results as they come."""
    if workers == 0 and scheduler is None:
        yield ((task, perform(study, task.arguments, seed)) for task, seed in missing)
        return
    from distributed import as_completed

    with client_of(scheduler or LOCAL, len(missing), workers) as client:
        futures = {}
        for task, seed in missing:
            arguments = dict(task.arguments)
            key = f"{study.name}-{task.key}-{seed}"
            future = client.submit(perform, study, arguments, seed, key=key)
            futures[future] = task
        yield (
            (futures.pop(future), future.result())
            for future in as_completed(list(futures))
        )
