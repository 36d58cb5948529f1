"""The check of a stream's logs: they can be read, say what a writer may, and name rows and episodes that exist."""

from __future__ import annotations

from diskreplay.errors import CorruptionError
from diskreplay.index.log import StreamLog
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.reading.bytelog import CONTENTS, read_records
from diskreplay.schema import Schema
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit


def check_log(path: str, reader: ColumnReader, schema: Schema, view: Commit, found: Findings) -> None:
    """Check the log that a commit names; ColumnCheck looks for what of its files cannot be read."""
    place = {"stream": reader.stream, "column": path, "file": reader.directory}
    rows = StreamLog(view.stream, (), (), view.num_envs, view.capacity, 0, schema.later)
    rows.restart(view.begin, view.end, 0)
    content = CONTENTS[path](schema, rows)
    begin, end = view.log_span(path)
    try:
        reader.load(begin, end, view.tails[path])
        for record in read_records(content, reader, begin, end):
            content.take(record)
    except ValueError as error:
        found.add(f"{content.what} cannot be read: {error}", **place)
    except (CorruptionError, *DAMAGE):
        return
    else:
        for problem in content.problems():
            found.add(problem, **place)
