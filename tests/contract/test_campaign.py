"""A part of the random campaigns of ``benchmarks/campaign``: no request ends after its
charge, and no command without a documented exit code and a line.
"""

from collections import Counter

import pytest

from benchmarks.campaign import commands, requests
from pdips.errors import InputError, NotConvergedError, RefusedError, ResumableError
from pdips.histogram.laplace import LaplaceSanitizer
from pdips.registry import MECHANISMS
from pdips.release.release import Release

SEED = 46
NEED_MODELS = {
    "censored-posterior",
    "group-sums",
    "modips",
    "pseudo-posterior",
    "scores",
}


def test_every_mechanism_without_a_model_takes_part():
    assert {*requests.COUNTING} == {*MECHANISMS} - NEED_MODELS


@pytest.mark.slow
def test_random_requests_are_released_or_refused_before_their_charge():
    endings = Counter[str]()
    mechanisms = set[str]()
    ran = requests.campaign(SEED, 200, cards=5, mechanisms=requests.COUNTING)
    for number, request, ending in ran:
        assert not ending.fault, f"request {number}: {ending.fault}\n{request.code()}"
        endings[ending.how] += 1
        if ending.how == requests.RELEASED:
            mechanisms.add(request.mechanism)
    # or the requests say little about what happens after a charge
    assert endings[requests.RELEASED] > 120
    assert mechanisms == {*requests.COUNTING}


@pytest.mark.slow
def test_random_command_lines_end_as_documented():
    codes = Counter[int]()
    for number, words, ending in commands.campaign(SEED, 500):
        assert not ending.fault, f"command {number}: {ending.fault}\n{words!r}"
        codes[ending.code] += 1
    assert codes[0] > 50
    assert codes[2] > 100


def sanitized(**options) -> requests.Request:
    schema = {"columns": {"a": {"levels": ["x", "y"]}}}
    options = {"epsilon": 1} | options
    table = {"a": ["x", "y", "x"]}
    return requests.Request("laplace-sanitizer", schema, table, options)


def test_a_request_is_code_that_can_be_pasted(ledger):
    import pandas as pd

    import pdips

    known = {"pd": pd, "pdips": pdips, "ledger": ledger}
    release, _ = eval(sanitized(n_sets=2).code(), known)
    assert release.n_sets == 2
    assert len(ledger.entries()) == 1
    drawn = requests.request_of(1, 5)
    assert drawn == requests.request_of(1, 5)
    assert drawn != requests.request_of(2, 5)


@pytest.mark.parametrize("error", [ZeroDivisionError, InputError])
def test_an_error_after_the_charge_is_a_fault(monkeypatch, error):
    # the broken twin
    assert requests.run(sanitized()) == requests.Ending(requests.RELEASED)

    def fail(*_, **__):
        raise error("too late")

    monkeypatch.setattr(Release, "publish", fail)
    assert "after the charge: too late" in requests.run(sanitized()).fault


def test_an_error_that_can_be_resumed_is_a_fault_all_the_same():
    error = ResumableError("resume it")
    error.__context__ = ZeroDivisionError("too late")
    assert "ZeroDivisionError after" in requests._judged(sanitized(), error, 1).fault
    error.__context__ = RefusedError("chains disagree")
    assert not requests._judged(sanitized(), error, 1).fault


def test_only_chains_that_read_records_may_end_without_a_release():
    error = NotConvergedError("chains disagree")
    assert requests._judged(sanitized(), error, 1).fault
    chains = requests.Request("censored-posterior", {}, {}, {})
    assert not requests._judged(chains, error, 1).fault


def test_an_error_before_the_charge_must_be_one_line_of_ours(monkeypatch):
    assert requests.run(sanitized(epsilon=0)).how == requests.REFUSED
    for error, words in ((KeyError, "KeyError before"), (InputError, "not in one")):

        def fail(*_, error=error):
            raise error("two\nlines")

        monkeypatch.setattr(LaplaceSanitizer, "plan", fail)
        assert words in requests.run(sanitized()).fault


@pytest.mark.parametrize(
    ("code", "err", "fault"),
    [
        (0, "", ""),
        (0, "WARNING   a seed\n", ""),
        (2, "pdips: no file\n", ""),
        (3, "", ""),
        (2, "Usage: pdips [OPTIONS]\n\n", ""),
        (1, "pdips: a bug: KeyError\n", "exit code 1"),
        (2, "", "without a word"),
        (2, "pdips: one\npdips: two\n", "2 lines"),
        (2, "Traceback (most recent call last)\n", "a traceback"),
        (2, "something else\n", "not a message"),
        (2, f"pdips: {'x' * 10_000}\n", "not a message"),
    ],
)
def test_how_a_command_may_end(code, err, fault):
    found = commands._fault(code, "", err)
    assert fault in found
    assert bool(found) == bool(fault)


def test_a_command_that_raises_is_a_fault(monkeypatch):
    def end():
        raise ValueError("out of the program")

    monkeypatch.setattr("pdips.cli.main", end)
    assert commands.run(["plan"]).fault == "ended with ValueError: out of the program"
