"""Both pages in headless Chromium: wide and narrow, light and dark, printed; with axe
and a watch on the network.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import CHROMIUM, schema_in
from test_report import facts_of, run_of, write_folder

from pdips import Ledger, Margins, Schema
from pdips.calibration.closed_form import prospects
from pdips.cli import program
from pdips.cli.plan import LEVEL, MOST_ROWS, page
from pdips.privacy.delta import suggested_delta
from pdips.report.card import odds_factor, power_bound
from pdips.report.pages import rewrite

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
RULES = {"runOnly": {"type": "tag", "values": TAGS}, "resultTypes": ["violations"]}
WITH_AXE = {(1280, "light"), (390, "dark")}
"""Each width and each scheme once: axe takes seconds on a long page."""
PAPER, MOST_BYTES, MOST_MS = 720, 2_000_000, 1_000
"""CSS pixels of a page of A4 between its margins; size of a page, and time until it can
be used.
"""

SCHEMA = schema_in("browser")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The pages of a release with a ledger and an internal evaluation."""
    home = tmp_path_factory.mktemp("released")
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "colour": rng.choice(["blue", "red", "green"], 400),
            "voted": rng.choice(["no", "yes"], 400),
        }
    )
    frame.assign(wage=rng.uniform(0, 100_000, 400)).to_parquet(home / "t.parquet")
    (home / "s.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    Ledger(home / "l.sqlite").set_total(5)
    words = (
        f"{home}/t.parquet --schema {home}/s.toml --mechanism margins --epsilon 1 "
        f"--sets 2 --ledger {home}/l.sqlite"
    )
    for command in (
        f"synthesize {words} --out {home}/first",
        f"synthesize {words} --out {home}/out",
        f"evaluate {home}/t.parquet {home}/out",
    ):
        program.main(command.split(), standalone_mode=False)
    return rewrite(home / "out")


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pages of facts that no quick run would give: chains, an approximate loss,
    warnings, a posterior with bounds.
    """
    stated = {
        "kind": "approximate",
        "delta": 1e-9,
        "epsilon": 12.0,
        "sampling": "mcmc",
        "neighbours": "add-remove",
    }
    settings = {"model": "m.py", "model_source": "x = 1\n" * 40}
    facts = facts_of(
        mechanism="censored-posterior", settings=settings, reproducible=True, **stated
    )
    run = run_of(facts)
    parameter = {
        "name": "mean of a very long name",
        "mean": 1.0,
        "sd": 0.1,
        "rhat": 1.0,
        "ess_bulk": 900.0,
    }
    window = {
        "limit": 0.5,
        "any": 3,
        "any_share": 0.05,
        "released": [2],
        "released_share": [0.03],
    }
    bounds = {
        "draws": 4000,
        "bound": 0.7,
        "rhat": 1.0,
        "ess_tail": 800.0,
        "certifies": "nothing",
        "window": window,
    }
    convergence = {
        "rhat": {"mu": 1.001},
        "ess_bulk": {"mu": 900},
        "ess_tail": {"mu": 700},
        "divergences": 0,
    }
    posterior = {
        "sampler": "nuts",
        "draws": 1000,
        "chains": 4,
        "convergence": convergence,
        "bounds": bounds,
    }
    posterior["parameters"] = [{**parameter, "ess_tail": 700.0, "released": [1.1]}]
    posterior["predictive"] = {
        "counts": {"entries": 10, "outside": 0.1, "smallest_p": 0.04, "furthest": 2.1}
    }
    run["diagnostics"] = {"posterior": posterior}
    return rewrite(write_folder(tmp_path_factory.mktemp("hand") / "out", facts, run))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The page of a plan."""
    path = tmp_path_factory.mktemp("planned") / "plan.html"
    path.write_text(
        page(of_pairs(epsilon=1), PLANNED, "s.toml", 5_000),
        encoding="utf-8",
    )
    return [path]


@pytest.fixture(scope="module", params=["released", "by_hand", "planned"])
def paths(request: pytest.FixtureRequest) -> list[Path]:
    found: list[Path] = request.getfixturevalue(request.param)
    return found


def complaints(
    browser: Any,
    path: Path,
    *,
    width: int = 1280,
    scheme: str = "light",
    axe: bool = True,
) -> list[str]:
    """Open a page, unfold all of it, and return what is wrong with it."""
    from axe_playwright_python.sync_playwright import Axe

    found: list[str] = []
    with browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    ) as page:
        page.on("console", lambda said: found.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: found.append(f"error: {error}"))
        page.on(
            "request",
            lambda asked: (
                found.append(f"request: {asked.url}")
                if asked.url != path.as_uri()
                else None
            ),
        )
        page.goto(path.as_uri())
        ready = page.evaluate(
            "performance.getEntriesByType('navigation')[0].domInteractive"
        )
        found += [f"slow: {ready:.0f} ms"] * (ready > MOST_MS)
        found += [f"large: {path.stat().st_size} bytes"] * (
            path.stat().st_size > MOST_BYTES
        )
        for _ in "folded", "unfolded":
            across = page.evaluate("document.documentElement.scrollWidth")
            if across > width:
                found.append(f"overflow: {across} of {width} pixels")
            page.evaluate(
                "document.querySelectorAll('details').forEach(part => { "
                "part.open = true })"
            )
        if axe:
            told = Axe().run(page, options=RULES).response["violations"]
            found += [
                f"axe: {one['id']} ({one['nodes'][0]['html'][:120]})" for one in told
            ]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_are_quiet_accessible_and_fit(
    browser: Any, paths: list[Path], scheme: str, width: int
) -> None:
    for path in paths:
        axe = path.name == "plan.html" or (width, scheme) in WITH_AXE
        assert complaints(browser, path, width=width, scheme=scheme, axe=axe) == [], (
            path.name
        )


INJECTED = {
    "script": "<script>document.title = 'ran'</script>",
    "handler": "<img alt='' src='data:,x' onerror=\"document.title = 'ran'\">",
    "request": "<img alt='' src='http://127.0.0.1:9/x.png'>",
    "style": "<style>h1 { display: none }</style>",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", INJECTED)
def test_what_is_injected_into_a_page_does_nothing(
    browser: Any, paths: list[Path], what: str, tmp_path: Path
) -> None:
    for path in paths:
        page = path.read_text(encoding="utf-8")
        injected = page.replace("</main>", f"{INJECTED[what]}</main>")
        policy = re.search(r"<meta http-equiv=.Content-Security-Policy[^>]*>", page)
        assert policy is not None
        unguarded = injected.replace(policy[0], "")
        happened = {}
        for name, text in {"guarded": injected, "unguarded": unguarded}.items():
            copy = tmp_path / f"{name}-{path.name}"
            copy.write_text(text, encoding="utf-8")
            happened[name] = effects(browser, copy)
        assert happened["guarded"] == {"violation"}, path.name
        # the broken twin: without its policy the page lets it happen
        assert happened["unguarded"] == {what}, path.name


def effects(browser: Any, path: Path) -> set[str]:
    """Open a page, and return what injected code brought about."""
    found: set[str] = set()
    with browser.new_page() as page:
        page.on(
            "console",
            lambda said: (
                found.add("violation") if "Content Security Policy" in said.text else 0
            ),
        )
        # nobody answers there, so that each request fails, if it isn't stopped before
        page.on(
            "requestfailed",
            lambda asked: found.add("request") if asked.failure != "csp" else 0,
        )
        page.goto(path.as_uri())
        page.wait_for_timeout(200)
        if page.title() == "ran":
            found.add("handler" if "onerror" in path.read_text("utf-8") else "script")
        if not page.is_visible("h1"):
            found.add("style")
    return found


def printed_width(browser: Any, path: Path) -> int:
    with browser.new_page(viewport={"width": PAPER, "height": 1000}) as page:
        page.goto(path.as_uri())
        page.emulate_media(media="print")
        across: int = page.evaluate("document.documentElement.scrollWidth")
        assert page.pdf(format="A4").startswith(b"%PDF")
        return across


def test_pages_print_without_losing_an_edge(browser: Any, paths: list[Path]) -> None:
    for path in paths:
        assert printed_width(browser, path) <= PAPER, path.name


WHOLE = (
    "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>t</title></head>"
    "<body><main>{}</main></body></html>"
)
BROKEN = {
    "axe: image-alt": "<h1>t</h1><img "
    "src='data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA='>",
    "axe: color-contrast": "<h1>t</h1><p style='color: #bbb; background: "
    "#fff'>hardly to be read</p>",
    "axe: heading-order": "<h1>t</h1><h4>t</h4>",
    "request: http://127.0.0.1:9/x.png": "<h1>t</h1><img alt='' "
    "src='http://127.0.0.1:9/x.png'>",
    "console: wrong": "<h1>t</h1><script>console.error('wrong')</script>",
    "error: thrown": "<h1>t</h1><script>throw new Error('thrown')</script>",
    "overflow: ": "<h1>t</h1><p style='width: 2000px'>wide</p>",
    "large: ": f"<h1>t</h1><!--{' ' * MOST_BYTES}-->",
    "slow: ": "<h1>t</h1><script>for (const from = Date.now(); Date.now() < from + "
    "1100;);</script>",
}


@pytest.mark.parametrize("expected", BROKEN)
def test_a_broken_page_is_seen(browser: Any, expected: str, tmp_path: Path) -> None:
    # the broken twin of each check above
    path = tmp_path / "page.html"
    path.write_text(WHOLE.format(BROKEN[expected]), encoding="utf-8")
    found = complaints(browser, path, axe=expected.startswith("axe"))
    assert len(found) >= 1
    assert all(
        one.startswith(expected) or expected.startswith("request") for one in found
    ), found
    assert any(one.startswith(expected) for one in found)
    if expected == "overflow: ":
        assert printed_width(browser, path) > PAPER
    path.write_text(WHOLE.format("<h1>t</h1><p>plain</p>"), encoding="utf-8")
    assert complaints(browser, path) == []


PLANNED = Schema.from_toml(
    SCHEMA.to_toml().replace("bins = 5", "") + "[columns.age]\nlower = 0\nupper = "
    "90\nbins = 9\n"
)
"""With a numeric column without bins, for pairs."""
# Pairs are counted twice
MANY = Schema(columns={name: {"levels": list("abc")} for name in "fghij"})
SETTINGS = [
    {
        "epsilon": epsilon,
        "delta": delta,
        "kind": kind,
        "neighbours": neighbours,
        "cap": cap,
    }
    for epsilon in (0.01, 0.37, 1, 4.2, 25)
    for kind, deltas in (("pure", (1e-6,)), ("zcdp", (1e-12, 1e-6, 0.003)))
    for delta in deltas
    for neighbours in ("replace-one", "add-remove")
    for cap in (1, 3)
]


def in_python(
    mechanism: Any, schema: Schema, at: dict[str, Any]
) -> tuple[list[float], dict[str, float]]:
    """Return standard errors, single columns first, and what an attacker gains, by the
    plan of the mechanism itself.
    """
    records = schema.records.model_copy(update={"max_per_person": at["cap"]})
    is_gaussian = at["kind"] == "zcdp"
    settled = mechanism(
        epsilon=1,
        neighbours=at["neighbours"],
        delta=suggested_delta(5_000) if is_gaussian else None,
    ).settled(schema)
    asked = replace(
        settled, epsilon=at["epsilon"], delta=at["delta"] if is_gaussian else None
    )
    plan = asked.plan(schema.model_copy(update={"records": records}))
    loss, found = plan.loss, prospects(plan, 5_000)
    errors = [
        each.standard_error
        for size in (1, 2)
        for each in found
        if len(each.columns) == size
    ]
    # of pure noise the page knows epsilon alone, which bounds the power too
    rho = float(loss.rho) if loss.kind == "zcdp" else 0.0
    power = power_bound(float(loss.epsilon), float(loss.delta), LEVEL, rho=rho)
    odds = {"power": power, "epsilon": float(loss.epsilon), "rho": rho}
    return errors, odds | (
        {"factor": odds_factor(at["epsilon"])} if at["kind"] == "pure" else {}
    )


@pytest.mark.parametrize(
    ("measure", "schema"),
    [("views", SCHEMA), ("pairs", SCHEMA), ("pairs", PLANNED), ("pairs", MANY)],
)
def test_a_plan_in_the_browser_agrees_with_python(
    browser: Any, measure: Any, schema: Schema, tmp_path: Path
) -> None:
    mechanism = partial(Margins, measure=measure)
    path = tmp_path / "plan.html"
    path.write_text(
        page(mechanism(epsilon=1), schema, "s.toml", 5_000), encoding="utf-8"
    )
    assert path.stat().st_size < 300_000
    with browser.new_page() as opened:
        opened.goto(path.as_uri())
        told = opened.evaluate("settings => settings.map(evaluate)", SETTINGS)
        commands = opened.evaluate(
            "settings => settings.map(at => command(at, facts.columns.map(() => 1)))",
            SETTINGS,
        )
        doubled = opened.evaluate(
            "at => evaluate({...at, cap: 2 * at.cap})", SETTINGS[0]
        )
    for at, found, command in zip(SETTINGS, told, commands, strict=True):
        assert (measure == "pairs", schema is PLANNED) == (
            "single_share=" in command,
            "intervals=" in command,
        )
        errors, odds = in_python(mechanism, schema, at)
        assert len(errors) == len(found["errors"]) <= MOST_ROWS
        assert found["errors"] == pytest.approx(errors, rel=1e-9), at
        assert {name: found[name] for name in odds} == pytest.approx(odds, rel=1e-9), at
    # a cap that is forgotten is found out
    assert doubled["errors"] != pytest.approx(told[0]["errors"], rel=1e-9)


def test_the_page_of_a_plan_writes_the_command_of_its_sliders(
    browser: Any, tmp_path: Path
) -> None:
    path = tmp_path / "plan.html"
    path.write_text(
        page(Margins(epsilon=1), SCHEMA, "a b.toml", None), encoding="utf-8"
    )
    with browser.new_page() as opened:
        opened.goto(path.as_uri())
        opened.select_option("#kind", "zcdp")
        opened.select_option("#neighbours", "add-remove")
        for name, value in (
            ("epsilon", "-0.3"),
            ("delta", "-8"),
            ("cap", "3"),
            ("importance-0", "0"),
        ):
            opened.fill(f"#{name}", value)
        command, note = (
            opened.inner_text("#command"),
            opened.inner_text("#command-note"),
        )
    assert command == (
        "pdips ledger set-total TABLE.sqlite 0.5 --delta 1e-8 --neighbours add-remove\n"
        "pdips synthesize TABLE --schema 'a b.toml' --mechanism margins --epsilon 0.5 "
        "--sets 1 --neighbours add-remove --delta 1e-8 --columns voted,wage --ledger "
        "TABLE.sqlite --out DIR"
    )
    assert "max_per_person = 3" in note
