"""The origin of steps: the environment, its arguments and wrappers, and the versions that they were recorded with.

A store keeps such a mapping as it was given; nothing in it is needed to read rows. What :func:`provenance` makes has

===================  ==================================================================================================
``env_id``           Gymnasium's name of the environment, or the class of one that has none
``env_spec``         the ``gymnasium.envs.registration.EnvSpec`` as its ``to_json`` has it, but as an object: arguments
                     in ``kwargs``, wrappers in ``additional_wrappers``; missing where an argument is no JSON
``num_envs``         of a vector environment
``action_meanings``  a name for each action, where the environment has ``get_action_meanings``
``versions``         of Python, Gymnasium, this package, and those that the environment's classes come from
===================  ==================================================================================================
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec

from diskreplay.errors import InputError
from diskreplay.storage.metadata import plain
from diskreplay.storage.store import PROVENANCE

Told = TypeVar("Told")

OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""The arguments that ``gymnasium.make_vec`` adds to a specification and ``gymnasium.make`` does not take."""


def checked(given: Any) -> dict[str, Any]:
    """Return a mapping as a store keeps it, empty for None; raise InputError for anything but JSON values."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(
            f"provenance must be a mapping of JSON values, got {type(given).__name__}; "
            "diskreplay.provenance(env) makes one of an environment"
        )
    return plain("provenance", given)


def setting(given: Any) -> dict[str, Any]:
    """Return the setting of a new store, empty if none is given, with errors as :func:`checked`."""
    given = checked(given)
    return {PROVENANCE: given} if given else {}


def provenance(env: Any) -> dict[str, Any]:
    """Return what a store should know of the environment of its steps, for ``create(..., provenance=...)``.

    Args:
        env: a Gymnasium environment with its wrappers, or a vector environment. Of one that Gymnasium did not make,
            the class is all that is known.

    Returns a mapping of JSON values: ``env_id``, ``env_spec``, ``num_envs``, ``action_meanings`` and ``versions``,
    as far as they are known.

    >>> provenance(gymnasium.make("CartPole-v1"))["env_id"]
    'CartPole-v1'
    """
    vector = isinstance(env, gymnasium.vector.VectorEnv)
    parts = getattr(env.unwrapped, "envs", None) if vector else None
    one: Any = parts[0] if isinstance(parts, list | tuple) and parts else env
    inner: Any = getattr(one, "unwrapped", one)
    spec, name = _tried(lambda: _spec(one, inner)) or (None, None)
    if vector and one is env and spec is not None:
        own = {name: value for name, value in spec.kwargs.items() if name not in OF_VECTORS}
        spec = dataclasses.replace(spec, kwargs=own)
    found: dict[str, Any] = {"env_id": name or f"{type(inner).__module__}:{type(inner).__qualname__}"}
    document = None if spec is None else _tried(lambda: plain("env_spec", json.loads(spec.to_json())))
    if document is not None:
        found["env_spec"] = document
    meanings = _tried(lambda: [str(each) for each in inner.get_action_meanings()])
    if meanings and inner.action_space == one.action_space:
        found["action_meanings"] = meanings
    if vector:
        found["num_envs"] = int(env.num_envs)
    return {**found, "versions": _versions(inner, spec)}


def _tried(ask: Callable[[], Told]) -> Told | None:
    """Return what code of the environment's own tells; None if it raises, which must not keep anyone from recording."""
    try:
        return ask()
    except Exception:
        return None


def _spec(env: Any, inner: Any) -> tuple[EnvSpec | None, str | None]:
    """Return the specification if it is one of Gymnasium's, and its id; EnvPool and others have their own classes."""
    spec = getattr(inner, "spec", None)
    if spec is None or isinstance(spec, EnvSpec):  # the wrappers' own has them, too
        spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None)
    known = plain("env_id", {"id": name})["id"] if isinstance(name, str) else None
    return spec if isinstance(spec, EnvSpec) else None, known


def _versions(env: Any, spec: EnvSpec | None) -> dict[str, str]:
    import importlib.metadata  # which imports much, and few programs ask

    modules = [kind.__module__ for kind in type(env).__mro__]
    modules += [wrapper.entry_point for wrapper in spec.additional_wrappers] if spec else []
    packages = ["gymnasium", "diskreplay", *(module.partition(".")[0] for module in modules)]
    if any("mujoco" in module for module in modules):
        packages.append("mujoco")
    found = {"python": platform.python_version()}
    for package in packages:
        name = package.replace("_", "-")
        if name not in found:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def common(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the common provenance of rows from several stores, and as ``sources`` each that differs."""
    different = [one for at, one in enumerate(each) if one not in each[:at]]
    if len(different) <= 1:
        return different[0] if different else {}
    first = different[0]
    shared = {key: value for key, value in first.items() if all(one.get(key) == value for one in different)}
    return {**shared, "sources": different}
