"""The way of a local store's checkpoints to its remote one: new ones are uploaded, dropped ones removed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from diskreplay.errors import RemoteConflictError
from diskreplay.remote import documents, ledger
from diskreplay.remote.checkpoint_objects import checkpoint_name, document_key, in_order_of_removal, put_checkpoint
from diskreplay.remote.commit_record import ChangedError, RemoteRecord, of_this_directory
from diskreplay.remote.needed import needed_objects
from diskreplay.remote.objects import Object, TakenError, find
from diskreplay.remote.uploads import Uploads
from diskreplay.storage import metadata
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Checkpoint


class Made(NamedTuple):
    """What a remote checkpoint says.

    Attributes:
        ours: True if this store's writers made it.
        number, id: the checkpoint's number and id: 0 and empty in older ones.
        cut: the record of the stream that is pushed, empty if the checkpoint has none.
    """

    ours: bool
    number: int
    id: str
    cut: dict[str, Any]


class CheckpointPush:
    """The checkpoints of a local store on their way to a URL, beside one of its streams; not thread-safe.

    Args:
        record: the record of the stream there.
        uploads: the stream's shards.
    """

    def __init__(self, record: RemoteRecord, uploads: Uploads) -> None:
        self._store, self._name, self._objects = record.store, record.name, record.objects
        self._record = record
        self._uploads = uploads
        self._made: dict[tuple[str, str], Made] = {}
        """What remote checkpoints say, by key and tag."""

    def run(self) -> tuple[str, ...]:
        """Bring the checkpoints up to date, whose rows are there; return the names that another's checkpoint has there.

        New ones first; and while one of them waits for its rows, the newest that was dropped stays. So a program that
        drops the one before when it has a new one has one there at any time. Then the tails go that nobody reads.
        """
        there, here = self._checkpoints_there(), self._checkpoints_here()
        dropped = self._dropped(here, there)
        new = [one for one in here if document_key(one.name) not in there]
        if not all([self._put_checkpoint(one, there) for one in new]):
            dropped = dropped[:-1]
        self._remove(dropped, there)
        for one in here:
            if one.name in dropped:  # and made again
                self._put_checkpoint(one, there)
        self._remove_tails(there)
        documents = {one.name: there[key] for one in here if (key := document_key(one.name)) in there}
        return tuple(name for name, document in documents.items() if not self._said(document).ours)

    def _put_checkpoint(self, checkpoint: Checkpoint, there: dict[str, Object]) -> bool:
        """Upload a checkpoint if all that it needs is remote; return True if one of its name is there now.

        One of another, which was made meanwhile, is added to ``there``.
        """
        try:
            if self._name in checkpoint.cut:
                self._uploads.put_tail(checkpoint.cut[self._name].tail)
        except FileNotFoundError:  # dropped meanwhile
            return False
        if not self._reached(checkpoint):
            return False
        self._record.hold()
        folder = os.path.join(self._store.path, CHECKPOINTS, checkpoint.name)
        try:
            beside = {"origin": self._record.origin}
            made = put_checkpoint(self._objects, self._store.files, folder, checkpoint, beside, there)
        except FileNotFoundError:  # dropped meanwhile
            return False
        except TakenError:
            there.update((one.key, one) for one in self._objects.list(f"{CHECKPOINTS}/{checkpoint.name}/"))
            return True
        self._check_checkpoint(checkpoint, made)
        return True

    def _check_checkpoint(self, checkpoint: Checkpoint, made: Mapping[str, str]) -> None:
        """Take a checkpoint back if what it needs was removed or replaced while it was put."""
        there = {one.key: one.tag for one in self._objects.list(f"{CHECKPOINTS}/{checkpoint.name}/")}
        replaced = any(there.get(key) != tag for key, tag in made.items())
        if replaced or not self._reached(checkpoint) or not self._record.stands():
            self._objects.delete(in_order_of_removal(checkpoint.name, there))
            raise ChangedError(checkpoint.name)

    def _reached(self, checkpoint: Checkpoint) -> bool:
        """Tell whether everything that the checkpoint needs is remote."""
        for name, cut in checkpoint.cut.items():
            remote = self._record.commit if name == self._name else of_this_directory(self._store, name, self._objects)
            if remote is None or remote.sequence < cut.sequence:
                return False
            there = {one.key: one.size for one in self._objects.list(f"{STREAMS}/{name}/")}
            needed = needed_objects(self._store.schema, name, cut)
            missing = {one.key for one in needed if there.get(one.key, -1) < one.size}
            if missing & self._uploads.known.keys():
                raise ChangedError(missing)  # removed since
            if missing:
                return False
        return True

    def _checkpoints_there(self) -> dict[str, Object]:
        return {one.key: one for one in self._objects.list(f"{CHECKPOINTS}/")}

    def _checkpoints_here(self) -> list[Checkpoint]:
        """Return the local checkpoints of one moment, oldest first: one dropped meanwhile may have a successor."""
        while True:
            before, here = self._store.checkpoint_names(), self._store.checkpoints()
            if {one.name for one in here} == set(before) == set(self._store.checkpoint_names()):
                return here

    def _dropped(self, here: Iterable[Checkpoint], there: Mapping[str, Object]) -> list[str]:
        """Return the names of remote checkpoints that this store's writers made and that are not here, oldest first."""
        kept, found = {one.name: one.id for one in here}, []
        for one in there.values():
            name = checkpoint_name(one.key)
            if name is not None and (made := self._said(one)).ours and made.id != kept.get(name):  # or made again
                found.append((made.number, name))
        return [name for _, name in sorted(found)]

    def _remove(self, names: Sequence[str], there: dict[str, Object]) -> None:
        """Remove remote checkpoints, also from what is known to be there."""
        if names:
            self._record.hold()
        for name in names:
            keys = in_order_of_removal(name, there)
            self._objects.delete(keys)
            for key in keys:
                del there[key]

    def _remove_tails(self, there: Mapping[str, Object]) -> None:
        """Remove the tails below the record's oldest that no checkpoint names, of those ``there`` and those here.

        Another's checkpoint that is not among them looks at that record when it is there.
        """
        record = self._record.commit
        left = self._uploads.tails_below(record.tail.oldest) if record is not None else {}
        if not left:
            return
        cuts = [self._said(one).cut for one in there.values() if checkpoint_name(one.key) is not None]
        named = {tail[0] for cut in cuts if isinstance(tail := cut.get("tail"), list) and tail}
        named |= {cut.tail.number for cut in self._store.cuts(self._name)}
        if dead := [key for number, key in left.items() if number not in named]:
            self._record.hold()
            self._uploads.remove(dead)

    def _said(self, document: Object) -> Made:
        """Return what a remote checkpoint says; nothing if it was removed since."""
        known = document.key, document.tag
        if known not in self._made:
            found = find(self._objects, document.key, metadata.MAX_BYTES)
            data = found[1] if found else b""
            said, mine = documents.ours(data), documents.beside(data).get("origin") in self._origins()
            number, cuts = said.get("number"), said.get("cut")
            cut = cuts.get(self._name) if isinstance(cuts, dict) else None
            self._made[known] = Made(
                bool(said) and mine, number if type(number) is int else 0, str(said.get("id", "")),
                cut if isinstance(cut, dict) else {},
            )  # fmt: skip
        return self._made[known]

    def give_up(self, timeline: int) -> None:
        """Remove the checkpoints of rows that were given up for a timeline, whose record is there.

        Another's checkpoint that is made from now on finds the new timeline; one that was made before is found here.
        """
        self.check_not_needed(timeline)
        there = self._checkpoints_there()
        self._remove(self._dropped(self._checkpoints_here(), there), there)

    def check_not_needed(self, timeline: int) -> None:
        """Raise RemoteConflictError if another's checkpoint may need rows that this stream gives up."""
        for one in self._checkpoints_there().values():
            if checkpoint_name(one.key) is None or (made := self._said(one)).ours or not made.cut:
                continue
            if made.cut.get("timeline") != timeline:
                raise RemoteConflictError(
                    f"the stream {self._name!r} goes back to a checkpoint, and {checkpoint_name(one.key)!r} of "
                    f"{self._objects.url} may need the rows that it gives up; drop that one, or go on in a new "
                    "stream (stream=...)"
                )

    def _origins(self) -> set[str]:
        """Return the origins of this stream, and of the local store's others that no other directory has pushed to."""
        found = {self._record.origin}
        for name in self._store.stream_names():
            if name != self._name and of_this_directory(self._store, name, self._objects) is not None:
                found.add(ledger.read(self._store.files, ledger.path(self._store.stream_path(name))).origin)
        return found
