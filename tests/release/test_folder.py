"""The folder of a release: one writer, whole parts, nothing replaced unasked."""

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from tables import refuses

import pdips
from pdips import Margins, Schema, Table, disk, file_lock
from pdips.release import folder
from pdips.release.folder import (
    UnfinishedError,
    clear_leftovers,
    is_locked,
    leftovers,
    staging,
)

WAYS = ["by the system", "by rename(2)"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch) -> str:
    """With and without a system that renames without replacing."""
    if request.param == WAYS[1]:
        monkeypatch.setattr(disk, "_rename_call", lambda: None)
    return request.param


def filled(part: Path, text: str = "new") -> None:
    (part / "file").write_text(text)


def released(out: Path, text: str, *, overwrite: bool = False) -> None:
    with staging(out, overwrite) as place:
        for name in ("public", "confidential"):
            filled(place.part(name), text)
            place.place(name)


def entries(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()}


# ---- renames ----


def test_a_rename_replaces_nothing_but_what_is_not_there(tmp_path, way):
    full, empty, file, other = (tmp_path / name for name in "abcd")
    for each in (full, empty):
        each.mkdir()
    filled(full)
    file.write_text("one")
    other.write_text("two")
    for old, new in [(file, other), (file, full), (full, file), (file, empty)]:
        with pytest.raises(FileExistsError):
            disk.rename_new(old, new)
    second = tmp_path / "e"
    second.mkdir()
    filled(second, "second")
    with pytest.raises(FileExistsError):
        disk.rename_new(second, full)
    assert (full / "file").read_text() == "new"
    assert (file.read_text(), other.read_text()) == ("one", "two")
    disk.rename_new(second, tmp_path / "f")
    assert (tmp_path / "f" / "file").read_text() == "second"
    with pytest.raises(FileNotFoundError):
        disk.rename_new(tmp_path / "none", tmp_path / "g")


def test_an_empty_folder_is_all_that_rename_2_may_replace(tmp_path):
    # the plain call, of which the way without flags makes use
    for name in ("old", "empty", "full"):
        (tmp_path / name).mkdir()
    filled(tmp_path / "old")
    filled(tmp_path / "full", "kept")
    with pytest.raises(OSError) as caught:
        os.rename(tmp_path / "old", tmp_path / "full")
    assert caught.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    os.rename(tmp_path / "old", tmp_path / "empty")
    assert (tmp_path / "empty/file").read_text() == "new"


def test_a_new_file_is_whole_or_not_there(tmp_path, monkeypatch, way):
    disk.write_new(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        disk.write_new(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "sync_open", full)
    with pytest.raises(OSError, match="No space"):
        disk.write_new(tmp_path / "b", b"third")
    assert entries(tmp_path) == {"a"}


# ---- placing ----


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "no parents"])
def test_parts_are_placed_beside_each_other(tmp_path, way, before):
    out = tmp_path / ("a/b/out" if before == "no parents" else "out")
    if before == "an empty folder":
        out.mkdir()
    released(out, "one")
    assert entries(out) == {"public", "confidential"}
    assert entries(out.parent) == {"out"}
    assert (out / "confidential").stat().st_mode & 0o777 == 0o700
    refuses("is not empty", released, out, "two")
    assert (out / "public/file").read_text() == "one"


def test_an_earlier_release_goes_when_the_new_public_part_is_in_place(tmp_path, way):
    out = tmp_path / "out"
    released(out, "one")
    with staging(out, True) as place:
        filled(place.part("public"), "two")
        assert (out / "public/file").read_text() == "one"
        place.place("public")
        # nothing of the earlier one is beside it
        assert entries(out) == {"public"}
        assert (out / "public/file").read_text() == "two"
    assert entries(tmp_path) == {"out"}
    assert entries(out) == {"public"}


def test_files_that_came_during_the_run_are_kept(tmp_path, way):
    out = tmp_path / "out"
    released(out, "one")
    with staging(out, True) as place:
        filled(place.part("public"), "two")
        (out / "notes.txt").write_text("mine")
        place.place("public")
    assert (out / "notes.txt").read_text() == "mine"
    assert entries(out) == {"public", "notes.txt"}


def test_a_place_that_was_taken_meanwhile_costs_no_release(tmp_path, way):
    out = tmp_path / "out"
    with staging(out, False) as place:
        filled(place.part("public"), "mine")
        (out / "public").mkdir(parents=True)
        filled(out / "public", "theirs")
        with pytest.raises(UnfinishedError, match="is kept in") as caught:
            place.place("public")
    assert (out / "public/file").read_text() == "theirs"
    (kept,) = entries(tmp_path) - {"out"}
    assert (tmp_path / kept / "public/file").read_text() == "mine"
    assert kept in str(caught.value)


def test_a_failed_swap_puts_the_earlier_release_back(tmp_path, monkeypatch):
    out = tmp_path / "out"
    released(out, "one")
    monkeypatch.setattr(folder, "exchange", lambda *_: False)

    def failing(old: Path, new: Path) -> None:
        if old.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        disk.rename_new(old, new)

    monkeypatch.setattr(folder, "rename_new", failing)
    with pytest.raises(OSError, match="Input/output"):
        released(out, "two", overwrite=True)
    assert (out / "public/file").read_text() == "one"
    assert (out / "confidential/file").read_text() == "one"


def test_all_is_on_the_disk_before_it_is_renamed(tmp_path, monkeypatch):
    done: list[tuple[str, str]] = []

    def note(what: str, function):
        def noted(path, *more):
            done.append((what, Path(path).name))
            return function(path, *more)

        return noted

    monkeypatch.setattr(disk, "sync", note("sync", disk.sync))
    monkeypatch.setattr(folder, "sync", note("sync", folder.sync))
    monkeypatch.setattr(folder, "rename_new", note("rename", folder.rename_new))
    with staging(tmp_path / "out", False) as place:
        part = place.part("public")
        filled(part)
        (part / "tables").mkdir()
        filled(part / "tables")
        done.clear()
        place.place("public")
    renamed = done.index(("rename", "public"))
    before = done[:renamed]
    assert before.count(("sync", "file")) == 2
    assert {("sync", "tables"), ("sync", "public")} <= {*before}
    assert done[renamed + 1 :] == [("sync", "out"), ("sync", tmp_path.name)]


@pytest.mark.parametrize("step", ["mkdir", "exchange"])
def test_an_interrupt_leaves_one_whole_release(tmp_path, monkeypatch, step):
    out = tmp_path / "out"
    released(out, "one")
    if step == "mkdir":
        done = Path.mkdir

        def interrupted(self, *args, **kwargs):
            done(self, *args, **kwargs)
            raise KeyboardInterrupt

        monkeypatch.setattr(Path, "mkdir", interrupted)
    else:

        def swapped(one: Path, other: Path) -> bool:
            disk.exchange(one, other)
            raise KeyboardInterrupt

        monkeypatch.setattr(folder, "exchange", swapped)
    with pytest.raises(KeyboardInterrupt):
        released(out, "two", overwrite=True)
    monkeypatch.undo()
    assert entries(tmp_path) == {"out"}
    found = {path.read_text() for path in out.rglob("file")}
    assert found == ({"one"} if step == "mkdir" else {"two"})


# ---- what is refused at once ----


def test_bad_places_are_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    refuses("is a file", released, tmp_path / "file", "")
    refuses("is no folder", released, tmp_path / "file/out", "")
    refuses("can't hold a release", released, Path("/"), "")
    (tmp_path / "loop").symlink_to("loop")
    refuses("leads nowhere", released, tmp_path / "loop", "")
    refuses("is no path|can't", released, tmp_path / "loop/x", "")
    assert len(refuses("is no path", released, Path("x" * 5000), "")) < 200
    assert not is_locked(tmp_path / "loop/x")
    (tmp_path / "loop").unlink()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x").write_text("")
    refuses("holds more", released, tmp_path / "more", "", overwrite=True)
    refuses("File name too long", released, tmp_path / ("n" * 250), "")

    def other_disk(old: Path, new: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(folder, "rename_new", other_disk)
    refuses("can't write in", released, tmp_path / "mounted", "")
    assert entries(tmp_path) == {"file", "more", "mounted"}


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", no_locks)
    refuses("can't be locked", released, tmp_path / "out", "")


def test_names_of_one_folder_are_one_lock(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    (tmp_path / "alias").symlink_to(tmp_path / "deep/out")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "PATIENCE", 0.01)
    names = ["deep/out", "link/out", "alias", "deep/../deep/out", "./deep/out/."]
    with staging(tmp_path / "deep/out", False):
        for name in names:
            assert is_locked(Path(name))
            refuses("another run is writing", released, Path(name), "")
            refuses("another run", released, Path(name), "", overwrite=True)
    released(Path("alias"), "one")
    assert (tmp_path / "deep/out/public/file").read_text() == "one"


# ---- space ----


def test_space_is_taken_until_the_first_part_is_made(tmp_path):
    with staging(tmp_path / "out", False) as place:
        place.reserve(0)
        place.reserve(300_000)
        (hidden,) = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert (hidden / "reserved").stat().st_blocks * 512 >= 300_000
        filled(place.part("public"))
        assert entries(hidden) == {"public"}
        place.place("public")


@pytest.mark.parametrize("how", ["no room", "no call", "no call and no room", "huge"])
def test_a_disk_without_room_is_refused(tmp_path, monkeypatch, how):
    def refusing(number: int):
        def allocate(*_):
            raise OSError(number, os.strerror(number))

        return allocate

    if how == "no room":
        monkeypatch.setattr(os, "posix_fallocate", refusing(errno.ENOSPC))
    if how.startswith("no call"):
        monkeypatch.setattr(os, "posix_fallocate", refusing(errno.EOPNOTSUPP))
    if how.endswith("no room"):
        usage = shutil.disk_usage(tmp_path)._replace(free=10)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with staging(tmp_path / "out", False) as place:
        if how == "no call":
            place.reserve(1000)
            return
        n_bytes = 2**70 if how == "huge" else 1000
        refuses("free space there", place.reserve, n_bytes)
        # a size that follows from a protected number of records isn't said
        refuses("the release doesn't fit", place.reserve, n_bytes, is_public=False)
        filled(place.part("public"))
        place.place("public")
    assert entries(tmp_path) == {"out"}


# ---- several processes ----


def run_once(out: str, account: str, start, overwrite: bool) -> None:
    """What a run does: lock, charge, sleep, publish."""
    start.wait()
    try:
        with staging(Path(out), overwrite) as place:
            with open(account, "a") as ledger:
                ledger.write(f"{os.getpid()}\n")
            time.sleep(0.02)
            for name in ("public", "confidential"):
                filled(place.part(name), str(os.getpid()))
                place.place(name)
    except Exception as error:  # noqa: BLE001 - the parent looks at what is there
        sys.exit(3 if "another run" in str(error) or "not empty" in str(error) else 4)


def race(tmp_path: Path, number: int, *, overwrite: bool = False) -> tuple[Path, list]:
    home = tmp_path / str(number)
    home.mkdir()
    context = multiprocessing.get_context("fork")
    start = context.Barrier(3)
    arguments = (str(home / "deep/out"), str(home / "account"), start, overwrite)
    runs = [context.Process(target=run_once, args=arguments) for _ in range(3)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    return home, runs


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_runs_on_one_folder_one_is_charged_and_its_release_survives(
    tmp_path, overwrite
):
    for number in range(8):
        home, runs = race(tmp_path, number, overwrite=overwrite)
        charged = (home / "account").read_text().split()
        codes = sorted(run.exitcode for run in runs)
        assert set(codes) <= {0, 3}
        assert len(charged) == codes.count(0)
        if not overwrite:
            assert codes == [0, 3, 3]
        halves = {path.read_text() for path in (home / "deep/out").rglob("file")}
        assert halves == {charged[-1]}
        assert entries(home / "deep") == {"out"}


def test_without_the_lock_the_test_above_would_fail(tmp_path, monkeypatch):
    # the broken twin: several are charged
    from contextlib import nullcontext

    monkeypatch.setattr(folder, "_locked", lambda *_: nullcontext())
    charged = [
        len((race(tmp_path, number)[0] / "account").read_text().split())
        for number in range(5)
    ]
    assert max(charged) > 1


def holding(out: Path) -> tuple[subprocess.Popen, int]:
    """Start a process that holds a folder, and has a child, whose number is returned
    too.
    """
    code = f"""
import os, time
from pathlib import Path
from pdips.release.folder import staging
with staging(Path({str(out)!r}), False) as place:
    (place.part("confidential") / "x").write_text("x")
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    with running.stdout:
        return running, int(running.stdout.readline())


def test_a_lock_of_a_killed_run_is_no_obstacle_and_its_folder_is_found(tmp_path):
    out = tmp_path / "out"
    running, child = holding(out)
    try:
        assert leftovers(out) == clear_leftovers(out) == []
        assert is_locked(out)
        refuses("another run is writing", released, out, "two")
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    try:  # the child that the run had forked lives on, and holds nothing
        os.kill(child, 0)
        found = leftovers(out)
    finally:
        os.kill(child, signal.SIGKILL)
    assert {path.suffix for path in found} == {"", ".lock"}
    (tmp_path / ".out-notes").mkdir()
    (tmp_path / ".other-0123456789abcdef").mkdir()
    released(out, "two")
    assert (out / "public/file").read_text() == "two"
    assert leftovers(out) == [path for path in found if not path.suffix]
    assert clear_leftovers(out) == [path for path in found if not path.suffix]
    assert leftovers(out) == clear_leftovers(out) == []
    assert entries(tmp_path) == {"out", ".out-notes", ".other-0123456789abcdef"}


def test_a_lock_file_that_its_owner_removes_is_not_locked(tmp_path, monkeypatch):
    # a second run has opened the file when the first one removes it: without the
    # comparison of numbers it would hold a lock on a file that nobody finds
    out, opened = tmp_path / "out", os.open
    lock = tmp_path / ".out.lock"
    lock.write_text("")
    removed = []

    def racing(path, *more, **named):
        descriptor = opened(path, *more, **named)
        if Path(path) == lock and not removed:
            lock.unlink()
            removed.append(descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", racing)
    with staging(out, False):
        assert lock.exists()
        monkeypatch.undo()
        refuses("another run", released, out, "")


def test_an_earlier_release_that_a_killed_run_moved_aside_comes_back(tmp_path):
    out = tmp_path / "out"
    released(out, "one")
    hidden = tmp_path / ".out-0123456789abcdef"
    hidden.mkdir()
    out.rename(hidden / "old")
    assert leftovers(out) == [hidden]
    assert clear_leftovers(out) == [hidden]
    assert (out / "public/file").read_text() == "one"
    assert entries(tmp_path) == {"out"}


@pytest.mark.slow
def test_two_programs_on_one_folder(tmp_path):
    """The same with the program itself, and a ledger."""
    from pdips import Ledger

    (tmp_path / "t.csv").write_text("a,b\n" + "0,1\n1,0\n" * 30)
    columns = "[columns.a]\nlevels = [0, 1]\n[columns.b]\nlevels = [0, 1]\n"
    (tmp_path / "s.toml").write_text(columns)
    command = [sys.executable, "-m", "pdips", "synthesize", tmp_path / "t.csv"]
    command += ["--schema", tmp_path / "s.toml", "--epsilon", "1"]
    command += ["--mechanism", "laplace-sanitizer"]
    command += ["--ledger", tmp_path / "l.sqlite", "--out", tmp_path / "out"]
    runs = [
        subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2]
    (refused,) = [text for run, text in zip(runs, said, strict=True) if run.returncode]
    last = refused.strip().splitlines()[-1]
    assert "another run is writing" in last or "is not empty" in last
    ledger = Ledger(tmp_path / "l.sqlite")
    assert len(ledger.entries()) == 1
    assert entries(tmp_path / "out") == {"public", "confidential"}


def csv_release(folder_of_it: Path) -> Path:
    """Publish a table whose levels are texts of digits; return the public folder."""
    columns = {"code": {"levels": ["01", "02"]}, "ill": {"levels": [False, True]}}
    schema = Schema.model_validate({"columns": columns})
    frame = pd.DataFrame({"code": ["01", "02"] * 30, "ill": [True, False] * 30})
    release, _ = Margins(epsilon=8).release(Table(frame, schema))
    release.publish(folder_of_it / "public", file_format="csv")
    return folder_of_it / "public"


def test_levels_that_are_texts_of_digits_stay_texts_in_a_csv_file(tmp_path):
    home = csv_release(tmp_path)
    _, tables = folder.read_tables(tmp_path, "synthetic_1", "no such table")
    assert list(tables) == ["synthetic_1"]
    assert set(tables["synthetic_1"]["code"]) == {"01", "02"}
    assert tables["synthetic_1"].equals(pdips.open(home).sets[0])


def test_a_table_that_was_not_published_is_not_read(tmp_path):
    home = csv_release(tmp_path)
    planted = pd.DataFrame({"code": ["02"], "ill": [True]})
    planted.to_parquet(home / "synthetic_1.parquet")
    refuses(
        "isn't the file that was published", folder.read_tables, home, "synthetic_1"
    )
