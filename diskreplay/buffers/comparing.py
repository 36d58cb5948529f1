"""The check that a store that is there is the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diskreplay.errors import InputError, NotAStoreError, StoreNotFoundError
from diskreplay.schema.columns import ACTION, OBS, Schema, Start
from diskreplay.storage.files import Files
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_url, full_path, is_url
from diskreplay.storage.store import Store

PADDINGS = {Start.ZEROS: "zero", Start.REPEAT: "reset"}
"""The names that ``create`` has for these start codes."""
SPACES = {OBS: "observation_space", ACTION: "action_space"}
SETTINGS = ("codec", "chunk_rows", "shard_rows")


def is_there(path: PathLike, schema: Schema, options: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Tell whether a store is at ``path``, or under the URL that it is pushed to.

    Args:
        schema, options, settings: the properties of the store that would be made; InputError is raised if the existing
            store has others.
    """
    url = options["remote"]
    if is_url(path):
        there = checked_url(path)
        raise InputError(
            f"rows are added to a local store, which is pushed: open_or_create(path, ..., remote={there!r}); "
            f"ReplayBuffer.open({there!r}, mode='r') reads one"
        )
    store = found(path, options["files"] or LocalFiles())
    if store is not None:
        name, stored, kept = store.path, store.schema, store.settings
    elif url is None or (joined := found_under(url)) is None:
        return False
    else:
        name, (stored, kept) = url, joined
    wrong = [*_schemas(schema, stored, options), *_settings(settings, kept)]
    if wrong:
        raise InputError(
            f"the store {name!r} is another than asked for: {'; '.join(wrong)}. Ask for what it has, or choose "
            "another path"
        )
    return True


def found(path: PathLike, files: Files) -> Store | None:
    """Return the store, or None if nothing is there, or an empty directory."""
    full = full_path(path)
    try:
        return Store(full, files)
    except StoreNotFoundError:
        return None
    except NotAStoreError:
        if files.kind(full) == "directory" and not files.list(full):
            return None
        raise


def found_under(url: str) -> tuple[Schema, dict[str, Any]] | None:
    """Return the schema and settings of the store under a URL, or None if there is none."""
    from diskreplay.remote import ObjectStore, find_store

    return find_store(ObjectStore(url))


def _schemas(asked: Schema, stored: Schema, options: Mapping[str, Any]) -> list[str]:
    """Return the differences in words; what was not asked for is not compared."""
    wanted, has = _facts(asked), _facts(stored)
    mine, others = wanted["columns"], has["columns"]
    columns, found = _columns(asked), _columns(stored)
    for what in SETTINGS if mine == others else ():
        if (given := options[what]) is not None:
            names = given if isinstance(given, Mapping) else [one.name for one in asked.obs_columns]
            names = [name for name in names if getattr(columns[name].given, what) != getattr(found[name].given, what)]
            wanted[what], has[what] = (
                {name: getattr(of[name].given, what) for name in names} for of in (columns, found)
            )
    said = [name for name, space in SPACES.items() if wanted[space] != has[space]]
    for facts, one, other in ((wanted, mine, others), (has, others, mine)):
        differing = {name: layout for name, layout in one.items() if other.get(name) != layout}
        facts["columns"] = {name: layout for name, layout in differing.items() if name.split("/")[0] not in said}
    return [f"{what} is {has[what]!r}, asked for {wanted[what]!r}" for what in wanted if wanted[what] != has[what]]


def _facts(schema: Schema) -> dict[str, Any]:
    """Return what stores must have in common, under the names that ``create`` has for it."""
    return {
        "observation_space": schema.observation_space,
        "action_space": schema.action_space,
        "frame_stack": [one.frames for one in schema.stacks],
        "stack_axis": [one.axis for one in schema.stacks],
        "stack_padding": PADDINGS[schema.padding],
        "finite": schema.finite,
        "continuity": schema.continuity,
        "ragged columns": {
            name: (one.items.shape, str(one.items.dtype), one.longest) for name, one in schema.ragged.items()
        },
        "video": schema.videos,
        "columns": {name: (one.shape, str(one.dtype)) for name, one in _columns(schema).items()},
        "later": {one.name: (one.shape, str(one.dtype)) for one in schema.later},
    }


def _columns(schema: Schema) -> dict[str, Any]:
    """Return the columns by name; of a ragged one that of its items, whose chunks and codec are set."""
    return {column.name: column for column in schema.columns} | {n: one.items for n, one in schema.ragged.items()}


def _settings(asked: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return the differences of a class's own settings, which are mappings by the class's name."""
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
