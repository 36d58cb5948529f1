"""The facts of a stream's episodes: lines that can be read, of episodes that do not overlap, named as facts must be."""

from __future__ import annotations

from diskreplay.index.facts import FactLog
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.schema import INFO
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit


def check_facts(name: str, reader: ColumnReader, view: Commit, found: Findings) -> None:
    """Looks at the facts that a commit names; what cannot be read of their files is the business of ColumnCheck."""
    place = {"stream": name, "column": INFO, "file": reader.directory}
    try:
        reader.load(view.info_begin, view.info_end, view.tails[INFO])
        data = reader.read_rows(view.info_begin, view.info_end).tobytes()
    except DAMAGE:
        return
    facts = FactLog(view.num_envs)
    facts.restart(view.info_begin)
    try:
        facts.take_over(data, view.begin, view.end)
    except (ValueError, TypeError, RecursionError) as error:
        found.add(f"the facts of episodes cannot be read: {error}", **place)
        return
    for row, env in facts.overlapping():
        found.add(f"the facts of row {row} of environment {env} are of an episode that others are of, too", **place)
    for row, env, what in facts.wrong():
        found.add(f"the facts of row {row} of environment {env}: {what}", **place)
