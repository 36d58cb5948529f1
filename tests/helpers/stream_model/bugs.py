"""Mistakes that a writer, a maker or a reader could make: with each, the model must find a violation."""

from __future__ import annotations

BUGS = {
    "unlink_early": "a tail is unlinked before the record that leaves it",
    "no_tail_sync": "the record is put in place before the tail is synced",
    "no_shard_sync": "the record is put in place before the shards are synced",
    "record_first": "the record is put in place before the block is appended",
    "no_listing_sync": "the list of checkpoints is not synced before an unlink",
    "no_second_look": "a maker does not read the other's record again",
    "look_by_file": "the second look asks whether the tail is there, not for `oldest`",
    "look_at_begin": "the second look compares `begin`, not `needed_from` of every table",
    "no_record_sync": "a maker does not sync the directory of another's record",
    "cut_marked": "a maker cuts a record that announces a going back",
    "no_pending": "a checkpoint counts before the second look",
    "cut_pinned": "recovery cuts what a cut names",
    "append_pinned": "after going back the cut's tail is appended to",
    "no_announcement": "going back lists the checkpoints before its timeline begins",
    "own_entries": "going back takes only the cut's own entries of arrays",
    "absent_table": "going back is not refused for a table that the cut lacks",
    "stale_tail": "recovery does not sync the directory after it unlinked tails",
    "shards_first": "recovery touches shards before tails",
    "reader_timeline": "a reader does not look at the timeline after a shard that it opened",
    "reader_keeps": "after a going back a reader keeps the shard that was the last one open",
}


def check_name(bug: str | None) -> str | None:
    """A bug that there is, or none."""
    if bug is not None and bug not in BUGS:
        raise ValueError(f"a bug must be one of {', '.join(BUGS)}, got {bug!r}")
    return bug
