"""The page that ``inspect`` prints: all facts about a store on one screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diskreplay_cli import text

if TYPE_CHECKING:
    from diskreplay.ops.inspect import ColumnFacts, EpisodeTotals, Facts

MAX_CHECKPOINTS = 5
MAX_STREAMS = 8
MAX_SPACE = 240
"""The most characters of a space; all of it is in the JSON."""
NARROW = 72
"""The characters that whole tables need: in fewer, names would give way, so that the last columns do."""
CONTINUITY = {
    "observations": "observations: an episode goes on while obs is the last next_obs",
    "flags": "flags: an episode goes on until it is terminated, truncated or cut",
}


def print_page(console: Console, facts: Facts, plain: bool, indent: int = 0) -> None:
    """Print the page; ``plain`` avoids block characters, ``indent`` moves it to the right."""
    narrow = console.width - indent < NARROW
    console.print(Padding(Group(*_parts(facts, plain, narrow)), (0, 0, 0, indent), expand=False))


def _parts(facts: Facts, plain: bool, narrow: bool) -> Iterable[RenderableType]:
    yield Text(facts.path, style="bold", overflow="fold")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _lines(facts):
        grid.add_row(name, value)
    yield grid
    if facts.episodes is not None:
        yield ""
        yield _episodes(facts.episodes, plain, narrow)
    yield ""
    yield _columns(facts, narrow)
    yield ""
    if not facts.health:
        yield Text.assemble(("healthy", "green bold"), " by a quick check; 'diskreplay verify' reads every chunk")
    else:
        yield Text("damaged: run 'diskreplay verify' for the whole extent", style="red bold")
        yield from (Text(f"  {problem}", overflow="fold") for problem in facts.health)


def _lines(facts: Facts) -> Iterable[tuple[str, str]]:
    held = "?" if facts.transitions is None else f"{facts.transitions:,}"
    full = "" if facts.transitions is None else f" ({100 * facts.transitions / max(1, facts.capacity):.3g} %)"
    yield "window", f"{held} of {text.plural(facts.capacity, 'transition')}{full}"
    sizes = f"{text.size(facts.stored_bytes)} for {text.size(facts.raw_bytes)}"
    yield "on disk", f"{sizes}: {text.compared(facts.ratio)}" if facts.raw_bytes else sizes
    columns = [one for one in facts.columns if not one.name.startswith(("patches/", "ragged/", "later/"))]
    cached = [one.name for one in columns if not one.resident]
    held = f"all columns but {', '.join(cached)}" if cached else "all columns"
    yield "in RAM", f"{held}, by a budget of {text.size(facts.budget_bytes)}"
    stack = {frames for frames in facts.frame_stack.values() if frames > 1}
    yield "obs", _space(facts.observation_space) + (f", {max(stack)} frames stacked" if stack else "")
    yield "action", _space(facts.action_space)
    yield "samples", _settings(facts)
    for column in facts.columns:
        if video := column.video:
            shown = f"{video['codec']}, {video['width']} x {video['height']}, {video['fps']:g} fps"
            size = f"{text.size(column.stored_bytes)} for {text.size(column.raw_bytes)} of pictures"
            yield "video", f"{column.name.partition('/')[2]}: {shown}; {size}, {text.compared(column.ratio)}"
    if facts.later:
        yield "written later", ", ".join(f"{name} of {count:,}" for name, count in facts.later.items()) + " transitions"
    yield from text.provenance(facts.provenance)
    yield "continuity", CONTINUITY.get(facts.continuity, facts.continuity)
    for stream in facts.streams[:MAX_STREAMS]:
        yield (
            f"stream {stream.name}",
            f"rows {stream.begin:,} to {stream.end:,} of {text.plural(stream.num_envs, 'environment')}, "
            f"{text.plural(stream.patches, 'patch row')}",
        )
        steps = (stream.end - stream.begin) * stream.num_envs
        if stream.transitions is not None and stream.transitions < steps:
            yield "", f"{steps - stream.transitions:,} of the {steps:,} steps are resets or gaps, and no transitions"
        if stream.ends is not None:
            yield "  ends", ", ".join(f"{count:,} {cause}" for cause, count in stream.ends.items() if count) or "none"
        if stream.sampled:
            yield "  sampled", f"{text.plural(stream.sampled, 'transition')}, by a rate limiter's count"
        writer = f", being written by {stream.writer}" if stream.writer else ""
        yield "  last commit", f"{stream.sequence} at {text.moment(stream.committed)}{writer}"
    if len(facts.streams) > MAX_STREAMS:
        yield "", f"and {len(facts.streams) - MAX_STREAMS} streams more"
    for place, checkpoint in enumerate(facts.checkpoints[-MAX_CHECKPOINTS:]):
        ends = ", ".join(f"{end:,}" for _, end in checkpoint.rows.values())
        label = "checkpoint" if len(facts.checkpoints) == 1 else "checkpoints"
        told = f"{checkpoint.name}: row {ends}, {text.moment(checkpoint.time)}{_mixture(checkpoint.mixture)}"
        if checkpoint.attachments:
            told += f", with {text.attachments(checkpoint.attachments)}"
        yield "" if place else label, told
    if not facts.checkpoints:
        yield "checkpoints", "none"
    elif len(facts.checkpoints) > MAX_CHECKPOINTS:
        yield "", f"and {len(facts.checkpoints) - MAX_CHECKPOINTS} older ones"


def _mixture(stored: dict[str, Any] | None) -> str:
    if stored is None:
        return ""
    given = stored.get("given")
    return f", of a mixture that has drawn {given} of its parts" if given else ", of a mixture kept in another store"


def _space(space: str) -> str:
    cut = text.shortened(space, MAX_SPACE)
    return cut if len(cut) == len(" ".join(space.split())) else f"{cut} (in full: --json)"


def _settings(facts: Facts) -> str:
    stored = (facts.settings.get(name) for name in ("view", "sampler"))
    return ", ".join(_call(one) for one in stored if isinstance(one, dict)) or "unknown"


def _call(stored: object) -> str:
    if isinstance(stored, list):
        return f"[{', '.join(map(_call, stored))}]"
    if not isinstance(stored, dict):
        return str(stored)
    options = ", ".join(f"{name}={_call(value)}" for name, value in stored.items() if name != "kind")
    return f"{stored.get('kind')}({options})"


def _episodes(facts: EpisodeTotals, plain: bool, narrow: bool) -> RenderableType:
    parts = [f"{facts.complete:,} complete"]
    parts += [f"{count:,} {what}" for count, what in ((facts.running, "going on"), (facts.cut_off, "cut off")) if count]
    title = f"{text.plural(facts.count, 'episode')}: {', '.join(parts)}"
    if facts.told:
        known = ", ".join(f"{name} of {count:,}" for name, count in facts.facts.items())
        title += f"\nfacts of {facts.told:,}: {text.shortened(text.printable(known), MAX_SPACE)}"
    if not facts.complete:
        return Text(title)
    table = _table("episodes", title)
    for name in ("min", "median", "mean", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("from min to max", no_wrap=True)
    for name, spread in (("length", facts.lengths), ("return", facts.returns)):
        if spread:
            bars = [] if narrow else [text.histogram(spread.counts, plain)]
            numbers = spread.least, spread.median, spread.mean, spread.most
            table.add_row(name, *map(text.number, numbers), *bars)
    return table


def _columns(facts: Facts, narrow: bool) -> Table:
    table = _table("column", None)
    table.add_column("shape", overflow="fold")
    table.add_column("dtype", no_wrap=True)
    layout = () if narrow else ("chunk", "shard", "codec")
    for name in (*layout, "stored", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for column in facts.columns:
        if not column.name.startswith("patches/"):
            table.add_row(*_column(column, narrow))
    patches = [column for column in facts.columns if column.name.startswith("patches/")]
    stored = sum(column.stored_bytes for column in patches)
    raw = sum(column.raw_bytes for column in patches)
    last = text.size(stored), text.ratio(raw / stored if stored else 0)
    table.add_row("patches", "", "", *[""] * len(layout), *last)
    return table


def _column(facts: ColumnFacts, narrow: bool) -> list[str]:
    shape = "x".join(map(str, facts.shape)) or "-"
    codec = facts.video["codec"] if facts.video else facts.codec
    layout = [] if narrow else [f"{facts.chunk_rows:,}", f"{facts.shard_rows:,}", codec]
    stored, ratio = text.size(facts.stored_bytes), text.ratio(facts.ratio)
    return [facts.name, shape, facts.dtype, *layout, stored, ratio]


def _table(first: str, title: str | None) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
        padding=(0, 1), header_style="cyan",
    )  # fmt: skip
    table.add_column(first, overflow="fold")
    return table
