"""``diskreplay report``: a store as one file that opens without a network or a server.

1. The facts about the whole store, the table of episodes among them: of very many only the newest are listed.
2. Some episodes to play: those that were asked for, or the best, the worst, the median one and the newest.
3. Each may take an equal share of what is left of the limit. Where its frames take more, every second frame is shown,
   or every fourth, and so on; where its values take more, it is left out. What was left out is said in the page.
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import time
from collections.abc import Sequence

from diskreplay.errors import InputError, StateError
from diskreplay.formats.core.output import check_target, replacing
from diskreplay.ops.result import Result
from diskreplay.ops.signals import Progress
from diskreplay.report.document import document, to_text
from diskreplay.report.episode import Camera, EpisodeValues, Strip, episode_values, strip
from diskreplay.report.overview import Overview, is_whole, overview
from diskreplay.report.source import Found, Snapshot
from diskreplay.storage.paths import PathLike, checked_path

LIMIT_MB = 20.0
LEAST_MB = 0.5
TABLE_SHARE = 0.4
"""The share of the limit that the facts about the whole store may take."""
MOST_FRAMES = 2000
"""The most frames of an episode and a camera, before the limit counts."""
KINDS = ("best", "worst", "median", "newest")


@dataclasses.dataclass(frozen=True)
class Report(Result):
    """The page that was written.

    Attributes:
        file: its path.
        episodes: numbers of those that can be played.
        left_out: the words that say what was left out, as the page has them.
    """

    file: str
    episodes: tuple[int, ...]
    listed: int
    left_out: tuple[str, ...]
    stored_bytes: int
    seconds: float


def report(
    path: PathLike,
    out: PathLike,
    *,
    episodes: Sequence[int] = (),
    limit_mb: float = LIMIT_MB,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write the store at ``path`` as a page into ``out``.

    Args:
        path: the path of the store.
        out: the file, ending in ``.html``.
        episodes: numbers of those to be played, from the end if negative; the best, worst, median and newest if empty.
        limit_mb: megabytes that the file may have, at least 0.5.
        overwrite: replace a file that is there, or that a link leads to.
        progress: a function that is told how many episodes are done, of how many.

    Raises:
        InputError: for another ending, a limit that is too small, an episode that is not there, or a file that is.
        OpenError, CorruptionError: when the store cannot be opened.
    """
    started = time.perf_counter()
    target = pathlib.Path(checked_path(out, "out"))
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{str(target)!r}: the name must end in .html")
    check_target(target, "file", overwrite)
    if not LEAST_MB <= limit_mb <= 1000:
        raise InputError(f"the limit must be {LEAST_MB:g} to 1000 MB, got {limit_mb:g}")
    source = Snapshot(path)
    wanted = picked(source, episodes)
    limit = int(limit_mb * 1e6)
    facts, left_out = _whole(source, int(limit * TABLE_SHARE))
    left_out += [f"stream {name} could not be read: see Health" for name in source.unread]
    empty = len(document(facts.name, "").encode()) + 4000  # for what was left out
    left = limit - empty - len(to_text(facts.to_json()).encode())
    if left < 0:
        raise InputError(f"the facts about the store alone take more than {limit_mb:g} MB; allow more with --limit")
    played: list[dict[str, object]] = []
    for done, (why, found) in enumerate(wanted):
        if progress is not None:
            progress(done, len(wanted))
        try:
            shown, said = _episode(source, found, left // (len(wanted) - done))
        except StateError:
            shown, said = None, [f"episode {found.number}: its writer evicted it meanwhile"]
        left_out += said
        if shown is not None:
            text = {**shown.to_json(), "why": why}
            left -= len(to_text(text).encode()) + 1
            played.append(text)
    data = {
        "live": False,
        "overview": facts.to_json(),
        "played": played,
        "left_out": left_out,
        "written": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),  # noqa: TID251  the page shows it
    }
    page = document(facts.name, to_text(data)).encode()
    if len(page) > limit:
        raise InputError(f"the page takes {len(page) / 1e6:.1f} MB, more than {limit_mb:g}; allow more with --limit")
    with replacing(target, "file", overwrite=overwrite) as temporary:
        temporary.write_bytes(page)
    numbers = tuple(int(one["number"]) for one in played)  # type: ignore[call-overload]  # of EpisodeValues
    return Report(
        str(target), numbers, len(facts.episodes.key), tuple(left_out), len(page), time.perf_counter() - started
    )


def picked(source: Snapshot, numbers: Sequence[int]) -> list[tuple[str, Found]]:
    """Return the episodes to be played, each once, with why: their numbers, or best, worst, median and newest.

    Raises InputError for a number that is not there.
    """
    every = source.episodes
    chosen: dict[int, list[str]] = {}
    for number in numbers:
        if not -len(every) <= number < len(every):
            had = f"0 to {len(every) - 1} (or negative, from the end)" if every else "left out: there are none"
            raise InputError(f"--episode must be {had}, got {number}")
        chosen.setdefault(number % len(every), []).append("asked for")
    if not numbers and every:
        whole = [one for one in every if is_whole(one.episode)] or every
        ordered = sorted(whole, key=lambda one: one.episode.total_reward)
        picks = (ordered[-1], ordered[0], ordered[(len(ordered) - 1) // 2], whole[-1])
        for kind, found in zip(KINDS, picks, strict=True):
            chosen.setdefault(found.number, []).append(kind)
    return [(", ".join(dict.fromkeys(why)), every[number]) for number, why in chosen.items()]


def _whole(source: Snapshot, most: int) -> tuple[Overview, list[str]]:
    """Return the facts about the store in at most ``most`` bytes, as far as fewer listed episodes help."""
    facts = overview(source)
    size = len(to_text(facts.to_json()).encode())
    if size <= most:
        return facts, []
    bare = overview(source, 0)
    fixed = len(to_text(bare.to_json()).encode())
    count = len(facts.episodes.key)
    kept = max(0, int((most - fixed) / max(1, size - fixed) * count * 0.95))
    return overview(source, kept), [f"the table of episodes lists the newest {kept:,} of {count:,}"]


def _episode(source: Snapshot, found: Found, most: int) -> tuple[EpisodeValues | None, list[str]]:
    """Return an episode with pictures in at most ``most`` bytes, or None, and what was left out."""
    facts = episode_values(source, found)
    taken = len(to_text(facts.to_json()).encode())
    if taken > most:
        return None, [f"episode {found.number}: its values alone take {taken / 1e6:.1f} MB"]
    strips: list[Strip] = []
    left_out, length = [], found.episode.length + 1
    for at, camera in enumerate(facts.cameras):
        share = (most - taken) // (len(facts.cameras) - at)
        every = -(-length // MOST_FRAMES)
        while (fitting := _fitting(source, found, camera, every, share)) is None and 2 * every <= length:
            every *= 2
        if fitting is None:
            left_out.append(f"episode {found.number}: the frames of {camera.name} are too large")
            continue
        if every > 1:
            left_out.append(f"episode {found.number}: 1 of {every} frames of {camera.name} is shown")
        strips += fitting
        taken += sum(len(one.src) + 200 for one in fitting)
    return dataclasses.replace(facts, strips=tuple(strips)), left_out


def _fitting(source: Snapshot, found: Found, camera: Camera, every: int, most: int) -> list[Strip] | None:
    """Return the strips of a camera, or None if they take more than ``most`` bytes."""
    strips: list[Strip] = []
    for first in range(0, found.episode.length + 1, every * camera.part_frames):
        strips.append(strip(source, found, camera.name, first, every, camera.part_frames))
        most -= len(strips[-1].src) + 200 + 8 * len(strips[-1].damaged)
        if most < 0:
            return None
    return strips
