"""Model files: those that come with pdips, and the analyst's own. It doesn't import
PyMC.
"""

import ast
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pdips.errors import InputError, hint

PACKAGE = Path(__file__).parents[1]

BuildModel = Callable[[Any, Any], Any]
"""``build_model(data, schema)``: from :class:`pdips.posterior.columns.Columns` and a
Schema to a ``pm.Model``.
"""


def folder() -> Path:
    """Return the folder of the models: part of an installed package, beside the package
    in a checkout.
    """
    installed = PACKAGE / "gallery"
    return installed if installed.is_dir() else PACKAGE.parent / "models"


def names() -> dict[str, str]:
    """Return the names of the models that come with pdips, each with the first line of
    its docstring.

    Examples
    --------
    >>> from pdips.posterior import model_file
    >>> "bernoulli" in model_file.names()
    True
    """
    return {
        file.stem: _first_line(file)
        for file in sorted(folder().glob("*.py"))
        if not file.stem.startswith("_")
    }


def path(name: str) -> Path:
    """Return the file of a model that comes with pdips.

    Raises
    ------
    InputError
        If there is no model of this name; the message lists those that exist.

    Examples
    --------
    >>> from pdips.posterior import model_file
    >>> model_file.path("bernoulli").name
    'bernoulli.py'
    """
    known = names()
    if name not in known:
        raise InputError(
            f"there is no model {name!r}{hint(name, known)}; pdips comes with "
            f"{', '.join(known)}"
        )
    return folder() / f"{name}.py"


def _first_line(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


@dataclass(frozen=True)
class Source:
    """A model: a function ``build_model(data, schema)`` that returns a ``pm.Model``,
    and its text.
    """

    # takes :class:`pdips.posterior.columns.Columns` and the schema
    build: BuildModel = field(repr=False)
    name: str  # for people and ``privacy.json``
    text: str = field(default="", repr=False)  # the Python source, which is public
    # variables whose convergence is asked for in place of the free ones
    watch: tuple[str, ...] = ()
    public_potentials: tuple[str, ...] = ()  # potentials that are no likelihood
    # whether ``text`` is all there is to know of the model, so that equal texts are
    # equal models
    is_file: bool = False
    # a :class:`pdips.conversion.converted.ConvertedModel` that the model was made of:
    # it is closed, and may read columns that are derived from public ones
    converted: Any = field(default=None, repr=False)

    @property
    def key(self) -> Any:
        """What differs wherever models do."""
        return self.text if self.is_file else self.build

    def __str__(self) -> str:
        return self.name


def as_source(model: str | Path | BuildModel | Source) -> Source:
    """Return a model given as a file, the name of one that comes with pdips, a function
    or a :class:`Source`.
    """
    if isinstance(model, Source):
        return model
    if not isinstance(model, (str, Path)) and not callable(model):
        raise InputError(
            "model must be a file, a name or a function build_model(data, schema), "
            "and is of type "
            f"{type(model).__name__}; let a function of that name make and return "
            f"the pm.Model"
        )
    if not isinstance(model, (str, Path)):
        name = getattr(model, "__name__", "model")
        from pdips.posterior.closures import source_of  # brings numpy along

        return Source(model, name, source_of(model, name), **declared_by(model))
    module, path = load(model)
    if callable(getattr(module, "statistics", None)):
        raise InputError(
            f"{path.name} is a model of noisy statistics, not of "
            f"records: it is for --mechanism modips"
        )
    if not callable(getattr(module, "build_model", None)):
        raise InputError(
            f"{path.name} has no function make(df), which makes a pm.Model, nor "
            f"build_model(data, schema)"
        )
    return Source(
        module.build_model,
        path.name,
        path.read_text(encoding="utf-8"),
        is_file=True,
        **declared_by(module),
    )


def declared_by(model: Any) -> dict[str, Any]:
    """Return what a file, or a function by its attributes, says of its model."""
    watch = getattr(model, "WATCH", ())
    potentials = getattr(model, "PUBLIC_POTENTIALS", ())
    return {"watch": tuple(watch), "public_potentials": tuple(potentials)}


def load(model: str | Path) -> tuple[ModuleType, Path]:
    """Return the module of a model file, or of one that comes with pdips, and its
    path.
    """
    file = Path(model)
    if not file.is_file():
        if file.suffix == ".py" or len(file.parts) != 1:
            raise InputError(
                f"there is no model file {file}; `pdips models list` "
                f"shows those that come with pdips"
            )
        file = path(file.name)
    spec = importlib.util.spec_from_file_location(f"pdips_model_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the file does wrong, and it has seen no record
        raise InputError(
            f"{file.name} can't be run: {type(error).__name__}: {error}"
        ) from None
    return module, file
