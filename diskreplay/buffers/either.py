"""A store that is opened where there is one, and made where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from diskreplay.buffers.options import PlaceOptions, RunOptions, pick
from diskreplay.errors import InputError, NotAStoreError, StoreExistsError, StoreNotFoundError
from diskreplay.paths import PathLike, full_path
from diskreplay.remote import joining
from diskreplay.remote.objects import ObjectStore, checked_url, is_url
from diskreplay.schema import Schema, Start
from diskreplay.storage.files import Files, LocalFiles
from diskreplay.storage.store import Store

Buffer = TypeVar("Buffer")

PADDINGS = {Start.ZEROS: "zero", Start.REPEAT: "reset"}
"""As ``create`` calls them."""


def open_or_make(
    path: PathLike, schema: Schema, own: Mapping[str, Any], options: Mapping[str, Any], make: Callable[[], Buffer],
    open_: Callable[[], Buffer],
) -> Buffer:  # fmt: skip
    """What ``open_`` gives where there is a store, else what ``make`` gives.

    Args:
        schema, own: of the store that would be made: InputError where the one that is there has others.
        options: as they were given.
    """
    _check_local(path)
    files: Files = options["files"] or LocalFiles()
    url = options["remote"]
    for last in (False, True):
        store = _found(path, files)
        there = (store.path, store.schema, store.settings) if store is not None else _remote(url)
        if there is None:
            try:
                return make()
            except StoreExistsError:
                if last:
                    raise
                continue  # another process was first
        name, stored, settings = there
        wrong = [*_schemas(schema, stored, options), *_settings(own, settings)]
        if wrong:
            raise InputError(
                f"the store {name!r} is another than asked for: {'; '.join(wrong)}. Ask for what it has, or choose "
                "another path"
            )
        break
    return open_()


def _check_local(path: PathLike) -> None:
    if is_url(path):
        url = checked_url(path)
        raise InputError(
            f"rows are added to a local store, which is pushed: open_or_create(path, ..., remote={url!r}); "
            f"ReplayBuffer.open({url!r}, mode='r') reads one"
        )


def _remote(url: str | None) -> tuple[str, Schema, Mapping[str, Any]] | None:
    """The store under a URL, to be joined."""
    there = joining.found(ObjectStore(url)) if url is not None else None
    return None if url is None or there is None else (url, *there)


def reopening(options: Mapping[str, Any]) -> dict[str, Any]:
    """What ``open`` is told, of the options that ``open_or_create`` was given."""
    return {**pick(options, RunOptions, PlaceOptions), "files": options["files"], "or_last_commit": True}


def _found(path: PathLike, files: Files) -> Store | None:
    """The store; None where nothing is there, or an empty directory."""
    full = full_path(path)
    try:
        return Store(full, files)
    except StoreNotFoundError:
        return None
    except NotAStoreError:
        if files.kind(full) == "directory" and not files.list(full):
            return None
        raise


def _schemas(asked: Schema, stored: Schema, options: Mapping[str, Any]) -> list[str]:
    """What differs, in words; what was not asked for is not compared."""
    facts: list[tuple[str, object, object]] = [
        ("observation_space", asked.observation_space, stored.observation_space),
        ("action_space", asked.action_space, stored.action_space),
        ("frame_stack", [one.frames for one in asked.stacks], [one.frames for one in stored.stacks]),
        ("stack_axis", [one.axis for one in asked.stacks], [one.axis for one in stored.stacks]),
        ("stack_padding", PADDINGS[asked.padding], PADDINGS[stored.padding]),
        ("finite", asked.finite, stored.finite),
        ("continuity", asked.continuity, stored.continuity),
    ]
    columns = {column.name: column for column in stored.columns}
    layouts = [{name: (one.shape, str(one.dtype)) for name, one in of.items()} for of in (_columns(asked), columns)]
    said = {
        "obs": asked.observation_space != stored.observation_space,
        "action": asked.action_space != stored.action_space,
    }
    differing = [
        {name: one for name, one in mine.items() if other.get(name) != one and not said.get(name.split("/")[0])}
        for mine, other in (layouts, layouts[::-1])
    ]
    facts.append(("columns", differing[0], differing[1]))
    later = [{one.name: (one.shape, str(one.dtype)) for one in of.later} for of in (asked, stored)]
    facts.append(("later", later[0], later[1]))
    for what in ("codec", "chunk_rows", "shard_rows"):
        if options[what] is not None and layouts[0] == layouts[1]:
            names = [one.name for one in asked.columns if getattr(one, what) != getattr(columns[one.name], what)]
            both = [{name: getattr(of[name], what) for name in names} for of in (_columns(asked), columns)]
            facts.append((what, both[0], both[1]))
    return [f"{what} is {has!r}, asked for {wanted!r}" for what, wanted, has in facts if wanted != has]


def _columns(schema: Schema) -> dict[str, Any]:
    return {column.name: column for column in schema.columns}


def _settings(asked: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """What differs of a class's own settings, which are mappings by the class's name."""
    found = []
    for kind, settings in asked.items():
        has = stored.get(kind)
        if not isinstance(has, dict):
            found.append(f"it has no {kind} settings")
            continue
        found += [
            f"{name} is {has.get(name)!r}, asked for {wanted!r}"
            for name, wanted in settings.items() if has.get(name) != wanted
        ]  # fmt: skip
    return found
