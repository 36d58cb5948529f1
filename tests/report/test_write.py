"""The page as one file: what is in it, what is left out, and that nothing of a store can become markup."""

from __future__ import annotations

import errno
import html.parser
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.commands import command
from report import episodes as made

import diskreplay as dr
from diskreplay.errors import DiskFullError, InputError, StateError, StoreNotFoundError
from diskreplay.report import episode as shown
from diskreplay.report import write
from diskreplay.report.document import SCRIPTS, document, to_text
from diskreplay.report.source import Snapshot
from diskreplay.report.write import picked, report


class Page(html.parser.HTMLParser):
    """The elements of a page, and the data in it."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(pathlib.Path(file).read_text(encoding="utf-8"))
        self.data = json.loads(self.texts["data"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements:
            key = self.elements[-1][1].get("id") or self.elements[-1][0]
            self.texts[key] = self.texts.get(key, "") + data


@pytest.fixture
def out(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "report.html"


def test_the_best_worst_median_and_newest_are_picked(path: str, out: pathlib.Path) -> None:
    made.make(path)
    result = report(path, out)
    page = Page(out).data
    assert {one["number"]: one["why"] for one in page["played"]} == {1: "best", 3: "worst, newest", 2: "median"}
    assert (result.episodes, result.left_out) == ((1, 3, 2), ())
    assert result.stored_bytes == out.stat().st_size
    assert page["overview"]["episodes"]["length"] == [4, 6, 2, 4, 3]
    assert [strip["camera"] for strip in page["played"][0]["strips"]] == ["obs/camera", "obs/depth"]


def test_other_episodes_can_be_asked_for(path: str, out: pathlib.Path) -> None:
    made.make(path)
    assert report(path, out, episodes=[0, -1, 0]).episodes == (0, 4)
    assert [why for why, _ in picked(Snapshot(path), [0])] == ["asked for"]


def test_the_file_asks_for_nothing(path: str, out: pathlib.Path) -> None:
    made.make(path)
    report(path, out)
    page = Page(out)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")], tag
    policy = next(a["content"] or "" for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    text = out.read_text()
    assert "@import" not in text
    assert "url(" not in text


HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--", "\u2028", "]]>", "@@script@@"]


def test_names_and_json_never_become_markup(path: str, out: pathlib.Path) -> None:
    with made.create(path, provenance={"env_id": "".join(HOSTILE), "more": HOSTILE}) as buffer:
        made.play(buffer, 0, 3)
        buffer.checkpoint("kept", metadata={"say": HOSTILE})
    report(pathlib.Path(path).rename(pathlib.Path(path).with_name("<b>@@data@@&lt;.replay")), out)
    page = Page(out)
    plain = report_of_plain(out.with_name("plain.html"))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert page.data["overview"]["env_id"] == "".join(HOSTILE)
    assert page.data["overview"]["facts"]["checkpoints"][0]["metadata"] == {"say": HOSTILE}
    assert page.data["overview"]["name"] == "<b>@@data@@&lt;.replay"


def report_of_plain(out: pathlib.Path) -> Page:
    """A report of a store whose names are harmless."""
    path = out.with_suffix(".replay")
    with made.create(path) as buffer:
        made.play(buffer, 0, 3)
    report(path, out)
    return Page(out)


def test_a_name_that_is_no_unicode(path: str, out: pathlib.Path) -> None:
    made.make(path)
    report(pathlib.Path(path).rename(pathlib.Path(path).with_name("a\udcff.replay")), out)
    assert Page(out).data["overview"]["name"] == "a\udcff.replay"


@pytest.mark.long
def test_frames_are_left_out_until_the_rest_fits(path: str, out: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    with dr.ReplayBuffer.create(path, space, made.ACTIONS, capacity=300) as buffer:
        frame = rng.integers(0, 256, space.shape, np.uint8)
        for step in range(300):
            following = rng.integers(0, 256, space.shape, np.uint8)
            buffer.add(frame, 0, 0.0, following, step == 299, False)
            frame = following
    result = report(path, out, limit_mb=1)
    assert result.stored_bytes <= 1_000_000
    (said,) = result.left_out
    strips = Page(out).data["played"][0]["strips"]
    every = strips[0]["every"]
    assert every > 1
    assert said == f"episode 0: 1 of {every} frames of obs is shown"
    assert sum(strip["count"] for strip in strips) == -(-301 // every)
    assert Page(out).data["left_out"] == [said]


@pytest.mark.long("the other tests of this module")
def test_the_newest_of_very_many_episodes_are_listed(path: str, out: pathlib.Path) -> None:
    space = spaces.Box(-1, 1, (1,), np.float32)
    with dr.ReplayBuffer.create(path, space, made.ACTIONS, capacity=20_000) as buffer:
        flags = np.ones(20_000, bool)
        obs = np.zeros((20_000, 1), np.float32)
        buffer.extend(obs, np.zeros(20_000, int), np.zeros(20_000), obs, flags, ~flags)
    result = report(path, out, limit_mb=0.5)
    assert result.stored_bytes <= 500_000
    assert 1000 < result.listed < 20_000
    assert result.left_out[0] == f"the table of episodes lists the newest {result.listed:,} of 20,000"
    table = Page(out).data["overview"]["episodes"]
    assert (table["first"], table["total"]) == (20_000 - result.listed, 20_000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"out": "report.pdf"}, "must end in .html"),
        ({"out": "missing/report.html"}, "there is no directory"),
        ({"limit_mb": 0.1}, "limit must be 0.5 to 1000 MB"),
        ({"episodes": [5]}, r"--episode must be 0 to 4 \(or negative, from the end\), got 5"),
        ({"episodes": [-6]}, "got -6"),
    ],
)
def test_misuse(path: str, tmp_path: pathlib.Path, options: dict[str, Any], said: str) -> None:
    made.make(path)
    before = sorted(tmp_path.rglob("*"))
    out = tmp_path / options.pop("out", "report.html")
    with pytest.raises(InputError, match=said):
        report(path, out, **options)
    assert sorted(tmp_path.rglob("*")) == before


def test_no_store(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StoreNotFoundError):
        report(tmp_path / "missing", tmp_path / "report.html")


def test_an_empty_store(path: str, out: pathlib.Path) -> None:
    made.create(path).close()
    assert report(path, out).episodes == ()
    with pytest.raises(InputError, match="there are none"):
        report(path, out, episodes=[0], overwrite=True)


def test_a_damaged_store_is_shown(path: str, out: pathlib.Path) -> None:
    made.make(path)
    made.damage(path, "obs/camera", count=None)
    report(path, out)
    assert any(strip["damaged"] for one in Page(out).data["played"] for strip in one["strips"])


def test_an_episode_that_is_evicted_meanwhile(path: str, out: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.make(path)
    strip = write.strip

    def evicted(source: Any, found: Any, *more: Any) -> Any:
        if found.number == 2:
            raise StateError("the stream evicted rows while they were read")
        return strip(source, found, *more)

    monkeypatch.setattr(write, "strip", evicted)
    result = report(path, out)
    assert (result.episodes, result.left_out) == ((1, 3), ("episode 2: its writer evicted it meanwhile",))


def test_the_page_is_replaced_and_nothing_else_is_left(path: str, out: pathlib.Path) -> None:
    made.make(path)
    out.write_text("old")
    with pytest.raises(InputError, match=r"exists; choose another name, or say .*--overwrite"):
        report(path, out)
    assert out.read_text() == "old"
    report(path, out, overwrite=True)
    assert out.read_text().startswith("<!doctype html>")
    assert sorted(file.name for file in out.parent.iterdir()) == ["a.replay", "report.html"]


def test_the_page_is_written_through_a_symbolic_link(path: str, out: pathlib.Path) -> None:
    made.make(path)
    out.symlink_to(out.with_name("latest.html"))
    for _ in range(2):
        assert report(path, out, overwrite=True).file == str(out)
        assert out.is_symlink()
        assert Page(out.with_name("latest.html")).data["played"]


def test_a_full_disk_names_the_file(path: str, out: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: "No space left on device", and not where."""

    def write_bytes(file: pathlib.Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    made.make(path)
    out.write_text("old")
    monkeypatch.setattr(pathlib.Path, "write_bytes", write_bytes)
    with pytest.raises(DiskFullError, match=r"there is no room for '.*report.html'; nothing was written: make room"):
        report(path, out, overwrite=True)
    assert out.read_text() == "old"
    assert sorted(file.name for file in out.parent.iterdir()) == ["a.replay", "report.html"]


def test_every_script_is_in_the_page() -> None:
    folder = pathlib.Path(shown.__file__).with_name("page")
    assert sorted(SCRIPTS) == sorted(file.name for file in folder.glob("*.js"))
    page = document("t", to_text({}))
    for name in SCRIPTS:
        assert (folder / name).read_text() in page
        assert "innerHTML" not in (folder / name).read_text()


def test_from_the_command_line(path: str, out: pathlib.Path) -> None:
    made.make(path)
    done = command("report", path, "-o", out, "--episode", "1")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "5 episodes listed, to be played: 1;" in done.stdout
    assert out.as_uri() in done.stdout
    assert "--overwrite" in command("report", path, "-o", out).stderr
    facts = json.loads(command("report", path, "-o", out, "--json", "--overwrite").stdout)
    assert facts["episodes"] == [1, 3, 2]
    assert command("report", path, "-o", out, "--overwrite", "--episode", "9").exit_code == 2
