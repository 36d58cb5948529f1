"""The words for numbers and times, and small pictures of numbers made of characters."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diskreplay.ops.repair import Repaired
    from diskreplay.ops.repair.plan import RepairPlan
    from diskreplay.ops.repair.stream_repair import StreamLoss

LINE = 300
"""The most characters of a line that a store may fill."""
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


def repaired(result: Repaired) -> Iterator[str]:
    """Yield what a repair gave up, a line for each thing."""
    if not result.changed:
        yield "nothing to repair"
        return
    yield f"repaired {plural(len(result.before.problems), 'problem')}" if result.before.problems else "repaired"
    yield from lost(result.streams)
    if result.checkpoints:
        yield f"checkpoints moved aside: {', '.join(result.checkpoints)}"
    if result.quarantine:
        yield f"{plural(len(result.moved), 'path')} moved or copied to {result.quarantine}"


def planned(plan: RepairPlan, path: str) -> Iterator[str]:
    """Yield how to repair a store, and what that would give up, a line for each thing."""
    command = shlex.join(["diskreplay", "verify", "--repair", path])
    if not (plan.streams or plan.checkpoints):
        yield f"'{command}' makes the store whole again; nothing would be given up"
        return
    yield f"'{command}' makes the store whole again; it would cost, for good:"
    for line in lost(plan.streams):
        yield f"  {line}"
    if plan.checkpoints:
        yield f"  checkpoints moved aside: {', '.join(plan.checkpoints)}"


def lost(losses: Iterable[StreamLoss]) -> Iterator[str]:
    """Yield what is given up of streams, a line for each."""
    for loss in losses:
        if loss.whole:
            yield f"stream {loss.stream!r} given up: its commit record cannot be read, and no checkpoint has it"
        elif loss.went_back_to is not None:
            yield f"stream {loss.stream!r} back at its newest checkpoint, row {loss.went_back_to:,}"
        elif loss.transitions or loss.chunks or not (loss.facts or loss.later):
            ranges = ", ".join(f"{first:,} to {stop:,}" for first, stop in loss.rows) or "none"
            yield (
                f"stream {loss.stream!r}: {plural(loss.transitions, 'transition')} of "
                f"{plural(loss.episodes, 'episode')} given up, rows {ranges}; "
                f"{plural(loss.chunks, 'chunk')} ({size(loss.bytes)}) of {', '.join(loss.columns)} lost"
            )
        if loss.facts:
            yield f"stream {loss.stream!r}: the facts of its episodes ({size(loss.facts)}) given up; its rows stay"
        if loss.later:
            yield f"stream {loss.stream!r}: the values written later ({size(loss.later)}) given up; its rows stay"
