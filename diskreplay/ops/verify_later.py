"""What was written to rows later: blocks that can be read, of rows that are there."""

from __future__ import annotations

from diskreplay.errors import CorruptionError
from diskreplay.index.later import LaterLog
from diskreplay.index.log import StreamLog
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.schema import LATER, Schema
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit


def check_later(name: str, schema: Schema, reader: ColumnReader, view: Commit, found: Findings) -> None:
    """Looks at the values that a commit names; what cannot be read of their files is the business of ColumnCheck."""
    later = LaterLog(schema.later, StreamLog(0, (), (), view.num_envs, 1, 0))
    try:
        reader.load(view.later_begin, view.later_end, view.tails[LATER])
        span = view.log_span(LATER)
        for block in later.blocks(*span, lambda start, stop: reader.read_rows(start, stop)[:, 0], whole=False):
            later.check(block, view.end)
    except ValueError as error:
        place = {"stream": name, "column": LATER, "file": reader.directory}
        found.add(f"what was written later cannot be read: {error}", **place)
    except (CorruptionError, *DAMAGE):
        return
