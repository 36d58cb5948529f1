"""The check that a store that is there is the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diskreplay.errors import InputError, NotAStoreError, StoreNotFoundError
from diskreplay.remote import ObjectStore, checked_url, find_store, is_url
from diskreplay.schema.columns import Schema, Start
from diskreplay.schema.spec import StoreSpec
from diskreplay.storage.files import Files
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, full_path
from diskreplay.storage.store import Store

PADDINGS = {Start.ZEROS: "zero", Start.REPEAT: "reset"}
"""The names that ``create`` has for these start codes."""


def is_there(path: PathLike, spec: StoreSpec, schema: Schema, files: Files | None, url: str | None) -> bool:
    """Tell whether a store is at ``path``, or under the URL that it is pushed to.

    Args:
        spec, schema: the properties of the store that would be made; InputError is raised if the existing store has
            others.
    """
    if is_url(path):
        there = checked_url(path)
        raise InputError(
            f"rows are added to a local store, which is pushed: open_or_create(path, ..., remote={there!r}); "
            f"ReplayBuffer.open({there!r}, mode='r') reads one"
        )
    store = found(path, files or LocalFiles())
    if store is not None:
        name, stored, settings = store.path, store.schema, store.settings
    elif url is None or (joined := find_store(ObjectStore(url))) is None:
        return False
    else:
        name, (stored, settings) = url, joined
    wrong = [*_schemas(schema, stored, spec), *_settings(spec.settings, settings)]
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


def _schemas(asked: Schema, stored: Schema, spec: StoreSpec) -> list[str]:
    """Return the differences in words; what was not asked for is not compared."""
    facts: list[tuple[str, object, object]] = [
        ("observation_space", asked.observation_space, stored.observation_space),
        ("action_space", asked.action_space, stored.action_space),
        ("frame_stack", [one.frames for one in asked.stacks], [one.frames for one in stored.stacks]),
        ("stack_axis", [one.axis for one in asked.stacks], [one.axis for one in stored.stacks]),
        ("stack_padding", PADDINGS[asked.padding], PADDINGS[stored.padding]),
        ("finite", asked.finite, stored.finite),
        ("continuity", asked.continuity, stored.continuity),
    ]
    columns = _columns(stored)
    layouts = [{name: (one.shape, str(one.dtype)) for name, one in of.items()} for of in (_columns(asked), columns)]
    ragged = [
        {name: (one.items.shape, str(one.items.dtype), one.longest) for name, one in of.ragged.items()}
        for of in (asked, stored)
    ]
    facts.append(("ragged columns", ragged[0], ragged[1]))
    facts.append(("video", asked.videos, stored.videos))
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
        given = getattr(spec, what)
        if given is not None and layouts[0] == layouts[1]:
            mine = _columns(asked)
            # That of the others follows from the capacity, which may grow.
            named = given if isinstance(given, Mapping) else [one.name for one in asked.obs_columns]
            names = [name for name in named if getattr(mine[name], what) != getattr(columns[name], what)]
            both = [{name: getattr(of[name], what) for name in names} for of in (mine, columns)]
            facts.append((what, both[0], both[1]))
    return [f"{what} is {has!r}, asked for {wanted!r}" for what, wanted, has in facts if wanted != has]


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
