"""The command ``audit``."""

import sys
from typing import Any

import click

from pdips.cli.common import NEIGHBOURS, OPTIONS, SETS, chosen
from pdips.errors import InputError
from pdips.html import show_progress
from pdips.registry import find, variants_of


@click.command()
@click.argument("mechanism_name", metavar="[MECHANISM]", required=False)
@click.option("--all", "every", is_flag=True, help="Audit every registered mechanism, sound and as published.")
@OPTIONS
@click.option("--variant", metavar="VARIANT", help="sound or published; short for --option variant=...")
@click.option("--epsilon", metavar="E", help="1 by default, or what a case is made for.")
@SETS
@NEIGHBOURS
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    metavar="C",
    help="For all bounds of a mechanism together.",
)
@click.option("--runs", "n_runs", type=int, default=100_000, show_default=True, metavar="N", help="On each table.")
@click.option("--seed", type=int, metavar="N", help="Of the runs, so that the same bounds come out again.")
@click.option("--membership", is_flag=True, help="Also attack whole releases, and print true positive rates.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def audit(
    mechanism_name: str | None,
    every: bool,
    options: tuple[str, ...],
    variant: str | None,
    epsilon: str | None,
    seed: int | None,
    n_sets: int,
    neighbours: str,
    confidence: float,
    n_runs: int,
    membership: bool,
    as_json: bool,
) -> None:
    """Bound the epsilon of MECHANISM from below on neighbouring tables, and say whether it spends more than it claims.

    Exit code 1 if a mechanism that claims a guarantee violates it; a published form, which claims none, may.
    """
    import json

    import numpy as np

    from pdips.audit import audit_cases, registered_cases, worst_by_pair
    from pdips.audit.membership import attack
    from pdips.privacy.loss import FINITE_KINDS
    from pdips.registry import AUDITS

    if every == (mechanism_name is not None):
        raise InputError("name one mechanism to audit, or --all")
    extra = (f"variant={variant}",) if variant is not None else ()
    common: dict[str, Any] = {"n_sets": n_sets, "neighbours": neighbours}
    common |= {} if epsilon is None else {"epsilon": epsilon}
    rng = None if seed is None else np.random.default_rng(seed)
    names = list(AUDITS) if every else [mechanism_name or ""]
    findings, attacks = [], []
    with show_progress() as progress:
        for name in names:
            if every:
                common["n_sets"] = min(n_sets, find(name).most_sets)
            for more in _offered(name, neighbours, variant) if every else [extra]:
                words = (*options, *more)
                asked = dict(word.split("=", 1) for word in words if word.startswith("variant="))
                cases = registered_cases(name, **chosen(name, words, common)[1] | asked)
                found = audit_cases(cases, n_runs=n_runs, confidence=confidence, rng=rng, progress=progress)
                findings += worst_by_pair(found)
                if membership:
                    progress(f"attacking whole releases of {name}")
                    first = cases[0].mechanism
                    named = {"mechanism": first.name, "variant": getattr(first, "variant", "sound")}
                    attacks += [{**named, **found.describe()} for found in attack(first, cases[0].pair)]
    described = [finding.describe() for finding in findings]
    if as_json:
        click.echo(json.dumps({"findings": described, "membership": attacks}, indent=2))
    else:
        _print_findings(described, attacks)
    if any(finding.verdict == "VIOLATION" and finding.kind in FINITE_KINDS for finding in findings):
        sys.exit(1)


def _offered(name: str, neighbours: str, variant: str | None) -> list[tuple[str, ...]]:
    """Return the options that choose each variant to audit, where a mechanism has it for these neighbours."""
    if neighbours not in find(name).relations:
        return []
    kinds = [kind for kind in variants_of(name) if variant in (None, kind)]
    if variant is None and neighbours != "replace-one":
        kinds = [kind for kind in kinds if kind == "sound"]
    return [() if kind == "sound" else (f"variant={kind}",) for kind in kinds]


def _print_findings(findings: list[dict[str, Any]], attacks: list[dict[str, Any]]) -> None:
    """Print one line a finding, widest column first in what matters: the verdict."""
    for found in findings:
        runs = "exact" if found["engine"] == "exact" else f"{found['engine']}, {found['n_runs']:,} runs"
        settings = f" {found['settings']}" if found["settings"] else ""
        click.echo(
            f"{found['verdict']:<10}  claim {found['claim']:g}  bound {found['bound']:.3f}  "
            f"{found['mechanism']} ({found['variant']}, {found['neighbours']}{settings})  {runs}"
        )
        click.echo(f"            {found['pair']}; event: {found['event']}")
    for found in attacks:
        click.echo(
            f"membership  {found['mechanism']} ({found['variant']})  {found['score']}: true positive rate "
            f"{found['true_positive_rate']:.3f} ({found['lower']:.3f} to {found['upper']:.3f}) at false positive rate "
            f"{found['measured_false_positive_rate']:.3f}; epsilon permits {found['permitted']:.3f}"
        )
