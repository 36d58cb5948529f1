"""The words for numbers and times, and small pictures of numbers made of characters."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diskreplay.ops.salvage import Salvaged
    from diskreplay.ops.salvage_streams import SalvagedStream
    from diskreplay.ops.verify import Verified

LINE = 300
"""The most characters of a line that a store may fill."""
MOST_DAMAGED = 20
"""The damaged episodes that are printed."""
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-~=+*#"


def size(count: float) -> str:
    """Return a number of bytes in decimal units: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def number(value: float) -> str:
    """Return a number in at most about seven characters."""
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Return a ratio such as ``93x`` or ``4.1x``, or a dash if nothing is stored."""
    if not value:
        return "-"
    return f"{value:,.0f}x" if value >= 9.95 else f"{value:.1f}x"


def compared(value: float) -> str:
    """Return how much smaller or larger a store is than its values, or "-" if it has none."""
    return f"{ratio(1 / value)} larger" if 0 < value < 1 else f"{ratio(value)} smaller"


def shortened(line: str, most: int) -> str:
    """Return a text on one line, cut in its middle if it is longer than ``most`` characters."""
    line = " ".join(line.split())
    return line if len(line) <= most else f"{line[: most * 2 // 3 - 3]} ... {line[len(line) - most // 3 + 2 :]}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ends(streams: Mapping[str, int]) -> str:
    """Return the row that each stream ends at."""
    return ", ".join(f"{name}: {end:,}" for name, end in streams.items())


def attachments(files: Mapping[str, int]) -> str:
    """Return the files of a checkpoint with their sizes: ``learner.pt (1.2 MB)``."""
    return ", ".join(f"{name} ({size(length)})" for name, length in files.items())


def moment(seconds: float) -> str:
    """Return a time as the local clock shows it, and how long ago that is."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return f"{clock} ({ago(time.time() - seconds)})"  # noqa: TID251  beside the time itself


def ago(seconds: float) -> str:
    """Return how long ago something was: ``just now``, ``5 minutes ago``."""
    for unit, length in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0)):
        if seconds >= length:
            return f"{plural(int(seconds / length), unit)} ago"
    return "just now"


def histogram(counts: Sequence[int], plain: bool = False) -> str:
    """Return one character a bin, as high as its count, and a space for none."""
    bars, most = PLAIN_BARS if plain else BARS, max(counts, default=0)
    return "".join(bars[-(-count * len(bars) // most) - 1] if count else " " for count in counts)


def provenance(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the origin of a store's steps, which may be anything: a name and a line for each thing known."""
    spec = told.get("env_spec")
    spec = spec if isinstance(spec, dict) else {}
    if told.get("env_id"):
        wrappers = spec.get("additional_wrappers")
        names = [str(one.get("name")) for one in wrappers or [] if isinstance(one, dict)]
        arguments = spec.get("kwargs")
        given = [f"{name}={value!r}" for name, value in arguments.items()] if isinstance(arguments, dict) else []
        line = f"{told['env_id']}({', '.join(given)})" if given else str(told["env_id"])
        yield "environment", cut(", ".join([line, *names]))
    versions = told.get("versions")
    if isinstance(versions, dict) and versions:
        yield "recorded with", cut(", ".join(f"{name} {version}" for name, version in versions.items()))
    known = ("env_id", "env_spec", "num_envs", "versions", "action_meanings")
    rest = {key: value for key, value in told.items() if key not in known}
    if rest:
        yield "provenance", cut(as_json(rest))


def as_json(value: Any) -> str:
    """Return JSON on one line, in letters that a terminal only shows: a store's text may hold others."""
    return printable(json.dumps(value, ensure_ascii=False))


def printable(line: str) -> str:
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in line)


def cut(line: str) -> str:
    """Return a line, cut if it is too long."""
    return line if len(line) <= LINE else f"{line[: LINE - 3]}..."


def cures(result: Verified, path: str) -> Iterator[str]:
    """Yield what can be done about the damage of a store, a line for each way."""
    from diskreplay.storage.paths import is_url

    if not result.ok and not is_url(path):
        command = shlex.join(["diskreplay", "salvage", path, f"{path.rstrip('/')}.salvaged"])
        yield f"to write all that can be read to a new store: {command}"
    if result.checkpoint is not None:
        line = f"diskreplay.ReplayBuffer.open({path!r}, mode='r', checkpoint={result.checkpoint!r})"
        yield f"to read the newest whole checkpoint: {line}"
    if result.checkpoint is not None and not is_url(path):
        command = shlex.join(["diskreplay", "checkpoints", "restore", path, result.checkpoint])
        yield f"to go back to it, and discard what came after it: {command}"
    if not result.ok:
        other = "the store that was pushed there" if is_url(path) else "what was pushed ('diskreplay pull')"
        yield f"to go on with a copy of the store: a backup, or {other}"


SALVAGED = ("stream", "record from", "kept", "lost", "whole episodes", "damaged", "also lost")
"""The heads of the columns of :func:`salvaged`."""


def salvaged(found: SalvagedStream) -> tuple[str, ...]:
    """Return what was kept and lost of a stream, in numbers."""
    if found.record is None:
        return (found.name, "nowhere", "none", "all", "", "", "")
    counts = (found.kept, found.lost, found.whole, len(found.damaged))
    return (found.name, found.record, *(f"{count:,}" for count in counts), ", ".join(found.logs))


def damage(found: Salvaged) -> Iterator[str]:
    """Yield the damaged episodes of a store, the first ones, and what else was lost, a line each."""
    episodes = [(stream.name, one) for stream in found.streams for one in stream.damaged]
    for name, one in episodes[:MOST_DAMAGED]:
        yield (
            f"stream {name}, environment {one.env}, rows {one.start:,} to {one.stop:,}: {one.kept:,} of "
            f"{plural(one.stop - one.start, 'step')} kept"
        )
    if len(episodes) > MOST_DAMAGED:
        yield f"and {plural(len(episodes) - MOST_DAMAGED, 'more damaged episode')}, which --json names"
    if found.root is not None:
        yield f"the root was read from {found.root}"
    for what, names in (("checkpoints", found.lost_checkpoints), ("attachments", found.lost_files)):
        if names:
            yield f"{what} that cannot be read: {', '.join(names)}"
    if found.padded:
        yield f"{plural(found.padded, 'transition')} at the begin of episodes show padding in their frame stacks"
    if found.checkpoints:
        yield f"metadata and attachments of {plural(len(found.checkpoints), 'checkpoint')}: {found.out}.checkpoints"
