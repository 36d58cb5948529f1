"""The episodes of an RLDS directory as a source.

1. All splits are read, in the order of ``dataset_info.json``; if there are several, an episode's is its fact ``split``.
   What a dataset tells of an episode beside its steps becomes facts, too, if they can hold it.
2. The last step of an episode holds the final observation, and nothing else that counts. But in the datasets of Open
   X-Embodiment an action was taken there, too, and a reward came of it. So a last step whose action or reward is not 0
   is a transition if the episode was terminated: its own observation stands in for the next one. Otherwise it is left
   out, as in all datasets without next observations.
3. An episode was terminated if ``is_terminal`` says so, or where that is missing a discount of 0. Any other was
   truncated, but for ``is_truncated``, which only datasets written here have.
4. All files, features of steps and episodes, and keys of examples are a dataset's names.
5. Texts in observations and actions are Text spaces of the characters that occur. Others are ragged columns of code
   points; ``provenance["rlds"]["text"]`` has their names, so that an export makes texts of them again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.buffers.provenance import checked
from diskreplay.engine.facts import checked as checked_facts
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import array_slice, episodes_source, reshaped
from diskreplay.formats.core.flat import FlatArrays, leaves_of
from diskreplay.formats.core.layout import Layout, column_name, infer_text
from diskreplay.formats.core.names import Names, files_below, natural
from diskreplay.formats.core.transitions import NO_START, Source
from diskreplay.formats.core.untrusted import damage, parse_json, read_json
from diskreplay.formats.files.tfds_features import BAD, IMAGE, TEXT, ReadableFeature, is_declared, read_features
from diskreplay.formats.files.tfrecord import StoredExample, examples
from diskreplay.schema.columns import ACTION, OBS, REWARD
from diskreplay.schema.ragged import Lists

FEATURES, INFO, LAYOUT = "features.json", "dataset_info.json", "diskreplay.json"
FLAGS = ("is_first", "is_last", "is_terminal", "is_truncated")
DISCOUNT, STEPS, METADATA, FACTS = "discount", "steps/", "episode_metadata/", "episode_metadata/diskreplay"
RLDS_OWN = (*FLAGS, DISCOUNT)
TOLD = ("name", "version", "description", "citation")
"""The keys of ``dataset_info.json`` that tell a dataset's origin."""
ORIGIN = "provenance.json"
"""The file of the provenance that diskreplay writes for others, beside the layout, which has it."""
SHARD = re.compile(r".+-(?P<split>[^-]+)\.tfrecord-(?P<number>\d+)-of-(?P<count>\d+)")

Features = Mapping[str, ReadableFeature]
"""Features of steps by our names, or RLDS's for flags and discounts, and of episodes by their keys after a slash."""


@dataclasses.dataclass(frozen=True)
class RldsEpisode:
    """An episode as it is known before its steps are read.

    Attributes:
        steps, rows: the number of steps that RLDS has, and of transitions in them.
        left: True if its last step has an action or a reward, and is no transition.
        ends: whether it was terminated, and truncated.
        keys: the keys of its example.
        unread: those of what is not kept: what facts cannot hold, and discounts that are more than ends.
        texts: the characters of each text leaf, and the length of the longest.
    """

    stored: StoredExample
    steps: int
    rows: int
    left: bool
    ends: tuple[bool, bool]
    facts: Mapping[str, Any]
    keys: frozenset[str]
    unread: tuple[str, ...]
    texts: Mapping[str, tuple[str, int]]


def source(path: pathlib.Path, choice: Choice) -> Source:
    """Return the directory as a source; raise InputError for one that cannot be read."""
    names = Names(files_below(path), lambda name: re.sub(r"-\d+-of-(\d+)$", r"-*-of-\1", name))
    layout = Layout.from_json(read_json(path / LAYOUT), str(path / LAYOUT)) if (path / LAYOUT).exists() else None
    names.take(FEATURES, INFO, *([] if layout is None else [LAYOUT, ORIGIN]))
    found, info = read_features(path / FEATURES), read_json(path / INFO)
    features = _by_name(path, found, layout is not None, choice)
    layout = layout and layout.only(choice.columns)
    info = info if isinstance(info, dict) else {}
    stored = _stored(path, info, names)
    several = len(stored) > 1 and layout is None
    every = [
        _looked_at(one, features, {"split": split} if several else {}) for split, each in stored.items() for one in each
    ]
    kept = [episode for episode in every if episode.rows]
    unread = {key for episode in every for key in episode.unread}
    keys = {key for episode in every for key in episode.keys}
    names.add(*found, *(key for key in keys if not is_declared(key, found)))
    names.take(*({feature.key for feature in features.values()} - unread))
    read = episodes_source(
        str(path), kept, [episode.rows for episode in kept], lambda one, given: _opened(one, features, given), layout
    )
    return dataclasses.replace(
        read, names=names, steps=read.steps + sum(episode.left for episode in every),
        facts=tuple(episode.facts for episode in kept) if any(episode.facts for episode in kept) else (),
        layout=read.layout if layout is not None else _with_texts(read.layout, features, kept, info),
    )  # fmt: skip


def _by_name(path: pathlib.Path, found: Mapping[str, ReadableFeature | None], ours: bool, choice: Choice) -> Features:
    named: dict[str, ReadableFeature] = {}
    every: dict[str, str] = {}
    readable = {key: feature for key, feature in found.items() if feature is not None}
    for key, feature in readable.items():
        root, slash, rest = (name := key.removeprefix(STEPS)).partition("/")
        if not key.startswith(STEPS):
            name = f"/{key}"
        elif root in ("observation", ACTION):
            name = {"observation": OBS}.get(root, root) + slash + rest
        elif name not in (REWARD, *RLDS_OWN) and not ours:
            name = column_name(name)
        every[name] = key
        if root in (ACTION, REWARD, *RLDS_OWN) or name[0] == "/" or choice.wants(name):
            if name in named:
                raise InputError(f"{path}: {key} and {named[name].key} would be one column of a store, {name!r}")
            named[name] = feature
    if "is_last" not in named or not leaves_of(every, OBS) or not leaves_of(named, ACTION):
        raise InputError(f"{path}: RLDS has steps with is_last, observation and action; here are {', '.join(found)}")
    obs = leaves_of(every, OBS)
    fixed = (*leaves_of(named, ACTION), REWARD, *RLDS_OWN)
    choice.check_columns(obs, [name for name in every if name not in {*obs, *fixed} and name[0] != "/"])
    return named


def _stored(path: pathlib.Path, info: Mapping[str, Any], names: Names) -> dict[str, list[StoredExample]]:
    files: dict[str, dict[tuple[int, int], pathlib.Path]] = {}
    order = sorted((file.name for file in path.iterdir()), key=natural)
    for match in filter(None, map(SHARD.fullmatch, order)):
        files.setdefault(match["split"], {})[int(match["number"]), int(match["count"])] = path / match.string
    with damage(str(path / INFO), BAD):
        lengths = {str(split["name"]): split.get("shardLengths") for split in info.get("splits", ())}
        counts = {split: None if each is None else sum(map(int, each)) for split, each in lengths.items()}
    found: dict[str, list[StoredExample]] = {}
    for split in [*counts, *(split for split in files if split not in counts)]:
        shards = sorted(files.get(split, {(-1, 1): path}).items())
        if [place for place, _ in shards] != [(number, len(shards)) for number in range(len(shards))]:
            has, of = sum(number >= 0 for (number, _), _ in shards), shards[0][0][1]
            raise InputError(f"{path}: has {has:,} of the {of:,} TFRecord files of the split {split!r}")
        found[split] = [example for _, file in shards for example in examples(file)]
        names.take(*(file.name for _, file in shards))
        if counts.get(split) not in (None, len(found[split])):
            raise InputError(
                f"{path}: {INFO} declares {counts[split]:,} episodes in {split!r}, not {len(found[split]):,}"
            )
    return found


def _looked_at(stored: StoredExample, features: Features, facts: dict[str, Any]) -> RldsEpisode:
    example, where = stored.read(), stored.where
    count = len(example[STEPS + "is_last"].int64_list.value) if STEPS + "is_last" in example else 0
    flags = {name: features[name].array(example, where, count)[:] for name in RLDS_OWN if name in features}
    if any(np.any(flags[name][:-1]) for name in ("is_last", "is_terminal") if name in flags):
        raise InputError(f"{where}: a step before the last one has is_last or is_terminal")
    ends = flags.get("is_terminal", flags[DISCOUNT][:-1] == 0 if DISCOUNT in flags else np.zeros(0, bool))
    terminated = bool(ends[-1:].any())
    truncated = bool(flags["is_truncated"][-1:].any()) if "is_truncated" in flags else not terminated
    more = count > 0 and _is_step([
        feature.array(example, where, count)[count - 1 : count]
        for name, feature in features.items() if name.partition("/")[0] in (ACTION, REWARD)
    ])  # fmt: skip
    rows = count if more and terminated else max(0, count - 1)
    unread = [] if np.isin(flags.get(DISCOUNT, 1), (0, 1)).all() else [features[DISCOUNT].key]  # more than an end
    for key, feature in {name[1:]: one for name, one in features.items() if name[0] == "/" and rows}.items():
        if feature.coding == IMAGE:
            unread.append(key)
        if feature.coding == IMAGE or key not in example:
            continue
        value = feature.array(example, where, 1)[0:1][0]
        value = "".join(map(chr, value)) if feature.coding == TEXT else value
        if key == FACTS:
            told = parse_json(value, f"{where}: {FACTS}")
            facts = told if isinstance(told, dict) else {"": told}
            checked_facts({name: told for name, told in facts.items() if name != NO_START}, {})
            continue
        try:
            facts = checked_facts({re.sub(r"\W", "_", key.removeprefix(METADATA)): value}, facts)
        except InputError:
            unread.append(key)
    found: dict[str, tuple[str, int]] = {}
    for name, feature in (leaves_of(features, OBS) | leaves_of(features, ACTION)).items():
        if feature.coding == TEXT:
            values = feature.array(example, where, count)[:]
            found[name] = "".join(map(chr, np.unique(values.values))), int(values.length.max(initial=0))
    return RldsEpisode(
        stored, count, rows, more and not terminated, (terminated, truncated), facts,
        frozenset(example), tuple(unread), found,
    )  # fmt: skip


def _is_step(values: list[Any]) -> bool:
    """Tell whether the action and the reward of a last step are more than what fills their place."""
    each = [np.asarray(one.values if isinstance(one, Lists) else one).reshape(-1) for one in values]
    return all(np.isfinite(one).all() for one in each) and any(one.any() for one in each)


def _opened(episode: RldsEpisode, features: Features, layout: Layout | None) -> FlatArrays:
    example, where, rows, steps = episode.stored.read(), episode.stored.where, episode.rows, episode.steps
    arrays = {name: feature.array(example, where, steps) for name, feature in features.items()
              if not name.startswith("/") and name not in RLDS_OWN}  # fmt: skip
    for name in [name for name in arrays if features[name].coding == IMAGE]:
        shape = layout.step_shapes[name][0] if layout is not None and name in layout.step_shapes else ()
        arrays[name] = reshaped(arrays[name], shape or features[name].shape or tuple(arrays[name].shape[1:]))
    parts = {name: array_slice(array, 0, rows) for name, array in arrays.items()}
    obs, action, last = leaves_of(parts, OBS), leaves_of(parts, ACTION), np.arange(rows) == rows - 1
    return FlatArrays(
        where, obs, action, last & episode.ends[0], last & episode.ends[1], last, parts.get(REWARD),
        {name: part for name, part in parts.items() if name not in {*obs, *action, REWARD}},
        finals={name: array_slice(arrays[name], steps - 1, steps) for name in obs}, layout=layout,
    )  # fmt: skip


def _with_texts(layout: Layout, features: Features, episodes: list[RldsEpisode], info: Mapping[str, Any]) -> Layout:
    """Return an inferred layout with spaces of texts, and with what the dataset tells of its origin."""
    texts = {
        name: infer_text(
            (char for episode in episodes for char in episode.texts[name][0]),
            max(episode.texts[name][1] for episode in episodes),
        )
        for name in episodes[0].texts
    }
    names = [name for name, feature in features.items() if feature.coding == TEXT and name in layout.columns]
    told = {**{key: info[key] for key in TOLD if info.get(key)}, **({"text": names} if names else {})}
    provenance: dict[str, Any] = {}
    with contextlib.suppress(InputError):
        provenance = checked({"rlds": told} if told else {})
    return dataclasses.replace(layout.with_texts(texts), provenance=provenance)
