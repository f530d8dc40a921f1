"""The command ``audit``."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import DELTA, NEIGHBOURS, OPTIONS, chosen
from pdips.errors import InputError
from pdips.html import show_progress
from pdips.registry import find, variants_of

if TYPE_CHECKING:
    from pdips.audit.neighbour_pairs import Case
    from pdips.privacy.curator import Progress

RANDOM_PAIRS = 4  # Beside the pair of a case, for each of its schemas


@click.command()
@click.argument("mechanism_name", metavar="[MECHANISM]", required=False)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Audit every registered mechanism, sound and as published.",
)
@OPTIONS
@click.option(
    "--variant",
    metavar="VARIANT",
    help="sound or published; short for --option variant=...",
)
@click.option(
    "--epsilon", metavar="E", help="1 by default, or what a case is made for."
)
@DELTA
@click.option(
    "--sets",
    "n_sets",
    type=int,
    default=1,
    show_default=True,
    metavar="M",
    help="Number of synthetic sets.",
)
@NEIGHBOURS
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    metavar="C",
    help="For all bounds of the command together.",
)
@click.option(
    "--runs",
    "n_runs",
    type=int,
    default=100_000,
    show_default=True,
    metavar="N",
    help="On each table.",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Of the runs, so that the same bounds come out again.",
)
@click.option(
    "--postprocessing",
    is_flag=True,
    help="Certify instead that with the same answers neighbouring tables are asked the "
    "same questions and publish the same bytes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def audit(**options: Any) -> None:
    """Bound the epsilon of MECHANISM from below on neighbouring tables, and say whether
    it spends more than it claims.

    Exit code 1 if a mechanism that claims a guarantee violates it; a published form,
    which claims none, may. With --postprocessing, exit code 1 if anything differs.
    """
    asked = AuditOptions(**options)
    if asked.every == (asked.mechanism_name is not None):
        raise InputError("name one mechanism to audit, or --all")
    if asked.postprocessing:
        _certify(asked)
    else:
        _bound(asked)


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of ``pdips audit``."""

    mechanism_name: str | None
    every: bool
    options: tuple[str, ...]
    variant: str | None
    epsilon: str | None
    delta: str | None
    seed: int | None
    n_sets: int
    neighbours: str
    confidence: float
    n_runs: int
    postprocessing: bool
    as_json: bool

    def cases(self) -> "Iterator[tuple[str, list[Case]]]":
        """Yield the cases of each mechanism and variant to audit, after its name."""
        from pdips.registry import AUDITS

        names = list(AUDITS) if self.every else [self.mechanism_name or ""]
        for name in names:
            for chosen_variant in self._variants(name):
                yield name, self._cases_of(name, chosen_variant)

    def _variants(self, name: str) -> list[tuple[str, ...]]:
        """Return the options that choose each variant to audit."""
        if self.every:
            return _offered(name, self.neighbours, self.variant)
        return [() if self.variant is None else (f"variant={self.variant}",)]

    def _cases_of(self, name: str, chosen_variant: tuple[str, ...]) -> "list[Case]":
        from pdips.audit import registered_cases

        n_sets = self.n_sets
        if self.every:
            n_sets = min(n_sets, find(name).most_sets)
        common: dict[str, Any] = {"n_sets": n_sets, "neighbours": self.neighbours}
        if self.epsilon is not None:
            common["epsilon"] = self.epsilon
        if self.delta is not None:
            common["delta"] = self.delta
        words = (*self.options, *chosen_variant)
        settings = chosen(name, words, common)[1]
        for word in words:
            if word.startswith("variant="):
                settings["variant"] = word.removeprefix("variant=")
        return registered_cases(name, **settings)


def _bound(asked: AuditOptions) -> None:
    """Print lower bounds on epsilon; exit code 1 if one is above its claim."""
    import numpy as np

    from pdips.audit import audit_cases, worst_by_pair
    from pdips.audit.findings import along_paths
    from pdips.privacy.loss import FINITE_KINDS

    rng = None if asked.seed is None else np.random.default_rng(asked.seed)
    with show_progress() as progress:
        cases = [
            case
            for _name, named in asked.cases()
            for case in [*named, *along_paths(named, rng)]
        ]
        # in one call, so that the confidence is that of all mechanisms together
        bounds = audit_cases(
            cases,
            n_runs=asked.n_runs,
            confidence=asked.confidence,
            rng=rng,
            progress=progress,
        )
    findings = worst_by_pair(bounds)
    described = [finding.describe() for finding in findings]
    if asked.as_json:
        click.echo(json.dumps({"findings": described}, indent=2))
    else:
        _print_findings(described)
    for finding in findings:
        if finding.verdict == "VIOLATION" and finding.kind in FINITE_KINDS:
            raise click.exceptions.Exit(1)


def _certify(asked: AuditOptions) -> None:
    """Print certificates of post-processing; exit code 1 if anything differs."""
    certificates: list[dict[str, Any]] = []
    left_out: list[str] = []
    with show_progress() as progress:
        for name, cases in asked.cases():
            try:
                for each in _certificates(name, cases, asked.seed, progress):
                    certificates.append(each)  # kept, whatever a later case says
            except InputError as error:
                if not asked.every:
                    raise
                if str(error) not in left_out:
                    left_out.append(str(error))
    if asked.as_json:
        found = {"certificates": certificates, "left_out": left_out}
        click.echo(json.dumps(found, indent=2))
    else:
        _print_certificates(certificates)
        for said in left_out:
            click.echo(f"left out    {said}")
    if not all(certificate["holds"] for certificate in certificates):
        raise click.exceptions.Exit(1)


def _certificates(
    name: str, cases: Sequence[Any], seed: int | None, progress: "Progress"
) -> "Iterator[dict[str, Any]]":
    """Yield certificates for the pairs of cases, and for random pairs of each of their
    schemas.
    """
    import numpy as np

    from pdips.audit.postprocessing import certify_postprocessing
    from pdips.audit.random_pairs import random_pair
    from pdips.mechanism import Mechanism

    rng = np.random.default_rng(seed)
    tried: dict[tuple[str, str], Any] = {}
    for given in cases:
        # not an audit's stand-in
        mechanism = getattr(given.mechanism, "stands_for", given.mechanism)
        case = replace(given, mechanism=mechanism)
        schema = case.pair.first.schema
        if isinstance(mechanism, Mechanism):
            if mechanism.plan(schema).sampling == "mcmc":
                raise InputError(
                    f"{name} draws by Markov chains, whose runs aren't repeated"
                )
            tried.setdefault((repr(mechanism), schema.to_toml()), case)
    for case in tried.values():
        schema = case.pair.first.schema
        relation = case.mechanism.neighbours
        pairs = [case.pair]
        for _ in range(RANDOM_PAIRS):
            pairs.append(random_pair(schema, relation, rng))
        progress(f"certifying {name}: {case.pair.name}")
        for pair in pairs:
            yield certify_postprocessing(case.mechanism, pair).describe()


def _print_certificates(certificates: list[dict[str, Any]]) -> None:
    for certificate in certificates:
        verdict = "identical" if certificate["holds"] else "DIFFERS"
        click.echo(
            f"{verdict:<10}  {certificate['mechanism']} "
            f"({certificate['neighbours']})  questions: "
            f"{certificate['n_questions']}, outputs: {certificate['n_outputs']}"
        )
        click.echo(f"            {certificate['pair']}")
        differing = [*certificate["questions"], *certificate["outputs"]]
        if differing:
            click.echo(f"            {'; '.join(differing)}")


def _offered(name: str, neighbours: str, variant: str | None) -> list[tuple[str, ...]]:
    """Return the options that choose each variant to audit, where a mechanism has it
    for these neighbours.
    """
    if neighbours not in find(name).offers.relations:
        return []
    kinds = [kind for kind in variants_of(name) if variant in (None, kind)]
    if variant is None and neighbours != "replace-one":
        kinds = [kind for kind in kinds if kind == "sound"]
    return [() if kind == "sound" else (f"variant={kind}",) for kind in kinds]


def _print_findings(findings: list[dict[str, Any]]) -> None:
    """Print one line a finding, widest column first in what matters: the verdict."""
    for finding in findings:
        click.echo(f"{finding['verdict']:<10}  {_claim(finding)}  {_subject(finding)}")
        click.echo(f"            {finding['pair']}; event: {finding['event']}")


def _claim(finding: dict[str, Any]) -> str:
    """Return the price that is claimed, and the bound on it."""
    if finding["unit"] == "rho":
        return f"claim {finding['claim']:g} rho  bound {finding['bound']:.6f}"
    return f"claim {finding['claim']:g}  bound {finding['bound']:.3f}"


def _subject(finding: dict[str, Any]) -> str:
    """Return what was audited, and how."""
    engine = finding["engine"]
    runs = {"exact": "exact", "path": "along a path"}.get(engine)
    if runs is None:
        runs = f"{engine}, {finding['n_runs']:,} runs"
    settings = f" {finding['settings']}" if finding["settings"] else ""
    whose = f"{finding['variant']}, {finding['neighbours']}{settings}"
    return f"{finding['mechanism']} ({whose})  {runs}"
