"""The base of the rollout buffers: steps of the present policy, their returns and advantages, minibatches.

1. Steps are rows of a store whose window is one rollout. What the policy said of them (value, log-probability) and the
   value of each final observation stand in columns of their own, so that a half-collected rollout survives a restart.
2. :meth:`OnPolicyBuffer.finish` computes advantages and returns, which stay in RAM, and in checkpoints.
3. Clearing empties the window; the disk space goes back with the next commit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers import returns
from diskreplay.buffers.opening import Asked
from diskreplay.buffers.options import OpenOptions, shared
from diskreplay.buffers.passes import Passes, Slices
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.checks import Array, check_array, check_count, check_flag, check_share
from diskreplay.engine.engine import Engine
from diskreplay.engine.hooks import State
from diskreplay.engine.inputs import InputExceptions, rounded
from diskreplay.errors import CorruptionError, InputError, NotAStoreError, NotEnoughDataError, StateError
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.samples import Samples
from diskreplay.reading.unroll import episode_stop, unroll
from diskreplay.schema import spaces
from diskreplay.schema.columns import REWARD, TERMINATED, TRUNCATED, VALID
from diskreplay.schema.ids import Ids, checked_ids
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.views.batch import Arrays, map_arrays

SomeBatch = TypeVar("SomeBatch", bound=Arrays)

VALUE, LOG_PROB, FINAL_VALUE = "value", "log_prob", "final_value"
OWN_COLUMNS = (VALUE, LOG_PROB, FINAL_VALUE)
ROLLOUT, AGENTS_ROLLOUT = "rollout", "multi_agent_rollout"
"""The names of the rollout buffers' own settings among a store's."""
EPSILON = 1e-8
"""The number that is added to the standard deviation by which advantages are divided."""

Normalizer = Any
"""An object with ``denormalize(values) -> values``, as critics have that learn normalised values."""


@dataclasses.dataclass(frozen=True)
class RolloutRows:
    """The steps of a rollout, rows ``begin`` to ``end``; arrays ``(T, num_envs, ...)``."""

    begin: int
    end: int
    ids: Ids
    """The ids ``(T * num_envs,)`` of the steps."""
    reward: Array
    value: Array
    final_value: Array
    """The values of final observations, NaN if none was given."""
    terminated: Array
    """True if the step terminated its episode, or is no transition."""
    cut: Array
    """True if the next step does not continue this one, or this one is no transition."""


class Estimates:
    """The newest result of :meth:`OnPolicyBuffer.finish`; a hook of its engine, to which it does not refer.

    Args:
        engine: the store.

    Attributes:
        finished: the rows ``[begin, end)`` for which alone it counts, and their ``advantage`` and ``returns``,
            ``(rows, num_envs, *value_shape)`` float32.
    """

    def __init__(self, engine: Engine) -> None:
        self._streams = engine.streams
        self.forget()

    def of(self, stream: OpenStream) -> dict[str, Array]:
        """Return advantages and returns of the rows that a stream holds, empty if they are not computed."""
        rows, estimates = self.finished
        return estimates if rows == (stream.log.begin, stream.log.end) else {}

    def state(self) -> State:
        arrays = {name: array.ravel() for name, array in self.of(self._streams.shown).items()}
        return {"finished": bool(arrays)}, arrays

    def forget(self) -> None:
        self.finished: tuple[tuple[int, int], dict[str, Array]] = (0, 0), {}


class OnPolicyBuffer(StoredBuffer, Generic[SomeBatch]):
    """A store whose window is one rollout."""

    _kind = ROLLOUT
    _walked_by = (
        "buffer.minibatches(64) and buffer.episode_minibatches(8) give batches of all its steps, after finish()"
    )
    _exceptions = InputExceptions(unknown=FINAL_VALUE)

    def __init__(
        self, store: Store, *, stream: str | None, checkpoint: Checkpoint | None = None, **options: Any
    ) -> None:
        """Take a store and the ``options`` of :class:`StoredBuffer`; users call :meth:`create` or :meth:`open`."""
        self._settings: Mapping[str, Any] = store.settings[self._kind]
        super().__init__(store, stream=stream, checkpoint=checkpoint, **options)
        self._computed = Estimates(self.engine)
        self.engine.hooks.append(self._computed)
        if checkpoint and checkpoint.state.get("finished"):
            self._restore(store.read_arrays(checkpoint), checkpoint.name)

    @classmethod
    def _kept(cls, schema: Any, stored: Mapping[str, Any], *more: Any) -> dict[str, Any]:
        if not isinstance(stored.get(cls._kind), dict):
            raise NotAStoreError(f"the store was not made by {cls.__name__}; open it with the class that made it")
        return {}

    @classmethod
    def _asked(
        cls, given: Sequence[Any], options: Mapping[str, Any], value_shape: tuple[int, ...] = (), **own: Any
    ) -> Asked:
        """Return what is asked for; ``own`` are further settings of the class."""
        steps, num_envs = check_count("steps", options["steps"]), check_count("num_envs", options["num_envs"])
        shares = {name: check_share(name, options[name]) for name in ("gamma", "gae_lambda")}
        normalize = check_flag("normalize_advantage", options["normalize_advantage"])
        columns = options["columns"] or {}
        taken = sorted({*OWN_COLUMNS} & {*columns})
        if taken:
            raise InputError(f"columns: {taken[0]!r} is a name of the rollout's own; choose another")
        columns = {**dict.fromkeys(OWN_COLUMNS, (value_shape, np.float32)), **columns}
        asked = {**options, "capacity": steps * num_envs, "num_envs": num_envs, "columns": columns}
        return given, asked, {cls._kind: {**own, **shares, "normalize_advantage": normalize}}

    @classmethod
    def _open_or_create(cls, path: PathLike, given: Sequence[Any], options: Mapping[str, Any]) -> Self:
        buffer = super()._open_or_create(path, given, options)
        if (buffer.steps, buffer.num_envs) != (options["steps"], options["num_envs"]):
            has = f"steps={buffer.steps}, num_envs={buffer.num_envs}"
            buffer.close()
            raise InputError(f"the rollout {buffer.path!r} has {has}; ask for these, or choose another path")
        return buffer

    @classmethod
    @shared(OpenOptions)
    def open(cls, path: PathLike, **options: Unpack[OpenOptions]) -> Self:
        """Open the store at ``path`` at a commit or a checkpoint, as :meth:`diskreplay.ReplayBuffer.open`.

        At a checkpoint advantages and returns are as they were; otherwise :meth:`finish` is to be called again.

        Args:
            path: the path of the store, or a URL (``s3://bucket/name``) with mode "r".
            **options: as described by their types.

        NotAStoreError where the store is not of this class.
        """
        return cls._open(path, options)

    # Facts

    @property
    def gamma(self) -> float:
        """The discount factor."""
        return float(self._settings["gamma"])

    @property
    def gae_lambda(self) -> float:
        """The lambda of generalised advantage estimation."""
        return float(self._settings["gae_lambda"])

    @property
    def normalize_advantage(self) -> bool:
        """True if minibatches have normalised advantages."""
        return bool(self._settings["normalize_advantage"])

    @property
    def steps(self) -> int:
        """The number of steps of each environment in a full rollout."""
        return self._stream.log.rows

    @property
    def full(self) -> bool:
        """True if the rollout takes no more steps until it is cleared."""
        with self.engine.lock:
            return self._stream.log.end - self._stream.log.begin >= self._stream.log.rows

    @property
    def finished(self) -> bool:
        """True if advantages and returns have been computed since the newest step."""
        return bool(self._estimates)

    @property
    def _estimates(self) -> dict[str, Array]:
        """The advantages and returns of the rows that are held, empty if they are not computed."""
        return {} if self.engine.gate.closed else self._computed.of(self._stream)

    @property
    def _stream(self) -> OpenStream:
        """The stream that is written, or with mode "r" the first."""
        self.engine.check_open()
        return self.engine.streams.shown

    # Collecting

    def _collect(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        final_value: Any, extra: dict[str, Any],
    ) -> None:  # fmt: skip
        """Add one step of each environment; raise StateError if the rollout is full."""
        with self.engine.write_lock:
            self.engine.writable()
            if self.full:
                raise StateError(f"the rollout is full ({self.steps} steps): call clear() before adding more")
            if final_value is None:
                final_value = np.full((*self._lead, *self._value_shape), np.nan, np.float32)
            extra = {**extra, FINAL_VALUE: final_value}
            for name in OWN_COLUMNS:
                extra[name] = rounded(name, extra[name])  # unlike data, estimates lose nothing that counts
            self.engine.add(obs, action, reward, next_obs, terminated, truncated, valid, extra)

    @property
    def _lead(self) -> tuple[int, ...]:
        return (self.num_envs,) if self.num_envs > 1 else ()

    @property
    def _value_shape(self) -> tuple[int, ...]:
        return self.schema.column(VALUE).shape

    def clear(self) -> None:
        """Forget the rollout, while the environments go on: a frame stack still reaches back into it.

        Raises ReadOnlyError, ClosedError or StateError when this buffer takes no rows.
        """
        engine = self.engine
        with engine.write_lock:
            engine.writable().check()
            with engine.lock.change:
                engine.empty()

    # Returns and advantages

    def finish(
        self, last_value: Any, value_fn: Callable[[Any], Any] | None = None, *,
        value_normalizer: Normalizer | None = None,
    ) -> None:  # fmt: skip
        """Compute advantages and returns of the steps collected, by generalised advantage estimation.

        A terminated step is not bootstrapped. One after which an episode was truncated, or just left, is bootstrapped
        with the value of its final observation: ``final_value`` of ``add``, or else ``value_fn``.

        Args:
            last_value: ``(num_envs, *value_shape)``, of the observations after the newest step; not read where that
                step ended an episode.
            value_fn: observations ``(M, *obs_shape)``, nested as the space, -> their values ``(M, *value_shape)``;
                called, if at all, with the final observations whose value was not given.
            value_normalizer: an object whose ``denormalize`` gives the true values of given ones; None where they are
                true values. Advantages and returns are of true values.

        Raises:
            NotEnoughDataError: when there is no step.
            InputError: for wrong shapes, values that are not finite, or final observations without a value.
        """
        steps = self._collected()
        value, final = true_values(steps.value, value_normalizer), true_values(steps.final_value, value_normalizer)
        newest = true_values(_checked("last_value", last_value, value.shape[1:]), value_normalizer)
        if not np.isfinite(newest[~steps.cut[-1]]).all():
            raise InputError("last_value must be finite where the newest step did not end an episode")
        missing = steps.cut & ~steps.terminated & np.isnan(final).reshape(*steps.cut.shape, -1).any(axis=-1)
        if missing.any():
            final[missing] = true_values(self._final_values(steps.ids, missing, value_fn), value_normalizer)

        def widen(array: Array) -> Array:
            return array.reshape(*array.shape, *[1] * (value.ndim - array.ndim))

        terminated, cut = widen(steps.terminated), widen(steps.cut)
        following = np.where(cut, final, np.concatenate([value[1:], newest[None]]))
        targets = self._settings.get("td_lambda")
        found, advantage = estimated(
            widen(steps.reward), value, following, terminated, cut, self.gamma,
            self.gae_lambda if targets is None else targets, td_targets=targets is not None,
        )  # fmt: skip
        estimates = {"advantage": rounded("advantage", advantage), "returns": rounded("returns", found)}
        self._computed.finished = (steps.begin, steps.end), estimates

    def _collected(self) -> RolloutRows:
        """Return the steps of the window; raise NotEnoughDataError if there is none."""
        with self.engine.lock:
            log = self._stream.log
            if log.begin == log.end:
                raise NotEnoughDataError("the rollout is empty; add some steps")
            ids = np.arange(log.first_id, log.stop_id)
            rows, envs = log.locate(ids)
            samples = Samples(self.schema, [self._stream], ids)
            value, final_value = self._values(samples, VALUE), self._values(samples, FINAL_VALUE)
            reward = self._rewards(samples)
            invalid = ~log.take(VALID, rows, envs)
            terminated = log.take(TERMINATED, rows, envs) | invalid
            cut = log.is_cut(rows, envs) | invalid
            begin, end = log.begin, log.end
        samples.reads.finish()

        def grid(array: Array) -> Array:
            return array.reshape(end - begin, log.num_envs, *array.shape[1:])

        return RolloutRows(
            begin, end, ids, grid(reward), grid(value), grid(final_value), grid(terminated), grid(cut)
        )  # fmt: skip

    def _rewards(self, samples: Samples) -> Array:
        """Return the rewards ``(n,)``, or ``(n, *value_shape)``."""
        return samples.resident(REWARD)

    def _values(self, samples: Samples, name: str) -> Array:
        return samples.values(self.schema.column(name))

    def _final_values(self, ids: Ids, missing: Array, value_fn: Callable[[Any], Any] | None) -> Array:
        """Return what ``value_fn`` says of the final observations of the steps ``missing``, ``(T, E)``."""
        if value_fn is None:
            row, env = np.argwhere(missing)[0].tolist()
            raise InputError(
                f"step {row} of environment {env} ended without terminating, and the value of its final observation is "
                "not known: give add(..., final_value=...) or finish(last_value, value_fn)"
            )
        with self.engine.lock:
            samples = Samples(self.schema, [self._stream], ids[missing.ravel()])
            leaves = [samples.observe(leaf)[1] for leaf in range(len(self.schema.stacks))]
        samples.reads.finish()
        values = value_fn(spaces.unflatten(self.schema.obs_tree, leaves))
        checked = _checked("value_fn's result", values, (int(missing.sum()), *self._value_shape))
        if not np.isfinite(checked).all():
            raise InputError("value_fn's result must be finite")
        return checked

    # Reading

    def minibatches(self, batch_size: int, epochs: int = 1, *, drop_last: bool = False) -> Iterator[SomeBatch]:
        """Iterate over all steps of the rollout in random order, ``epochs`` times.

        Args:
            batch_size: steps of every batch but an epoch's last.
            epochs: passes.
            drop_last: leave out a last batch that is smaller.

        Raises StateError when the rollout is not finished, or was cleared meanwhile.
        """
        return self._batches(self._step_ids, batch_size, epochs, drop_last, self.get)

    def episode_minibatches(
        self, batch_size: int, epochs: int = 1, *, max_length: int | None = None, drop_last: bool = False
    ) -> Iterator[SomeBatch]:
        """Iterate over the episodes of the rollout, or their parts in it, in random order and padded to one length.

        Args:
            batch_size, epochs, drop_last: as in :meth:`minibatches`, counting episodes.
            max_length: ``T``, steps that an episode is padded to, or of which its first ones are given; ``steps`` if
                None.
        """
        length = self.steps if max_length is None else check_count("max_length", max_length)

        def read(ids: Ids) -> SomeBatch:
            return self._read(ids, lambda: unroll(self.schema, [self._stream], ids, episode_stop, length))

        return self._batches(self._episode_ids, batch_size, epochs, drop_last, read)

    def get(self, index: Any) -> SomeBatch:
        """Return the steps that ``index``, int64 ``(B,)``, names; raise StateError before :meth:`finish`."""
        ids = checked_ids(np.atleast_1d(check_array("index", index)))

        def find() -> tuple[Samples, Array]:
            log = self._stream.log
            if not ((ids >= log.first_id) & (ids < log.stop_id)).all():
                raise InputError(
                    "index names a step that is not in the rollout; give batch.index of one of its minibatches"
                )
            return Samples(self.schema, [self._stream], ids), np.ones(len(ids), bool)

        return self._read(ids, find)

    def _step_ids(self) -> Ids:
        log = self._stream.log
        ids = np.arange(log.first_id, log.stop_id)
        valid: Ids = ids[log.take(VALID, *log.locate(ids))]
        return valid

    def _episode_ids(self) -> Ids:
        log, ids = self._stream.log, self._step_ids()
        rows, envs = log.locate(ids)
        begins: Ids = ids[log.begins(rows, envs) | (rows == log.begin)]
        return begins

    def _batches(
        self, find: Callable[[], Ids], batch_size: int, epochs: int, drop_last: bool, read: Callable[[Ids], SomeBatch]
    ) -> Iterator[SomeBatch]:
        batch_size, epochs = check_count("batch_size", batch_size), check_count("epochs", epochs)
        with self.engine.lock:
            self._check_finished()
            ids = find()

        def begin() -> Iterator[SomeBatch]:
            with self.engine.lock:
                order = self.engine.rng.permutation(ids)
            return Slices(order, batch_size, drop_last, read)

        return Passes(begin, epochs)

    def _batch(self, samples: Samples, ids: Ids, mask: Array) -> SomeBatch:
        """Return the batch of samples, split as ``mask``, ``(B,)`` or ``(B, T)``; the caller holds the lock."""
        raise NotImplementedError

    def _fields(self, samples: Samples, ids: Ids, mask: Array) -> dict[str, Any]:
        """Return the fields that every rollout's batch has, and the extra columns."""
        schema = self.schema
        leaves = [samples.current(leaf) for leaf in range(len(schema.stacks))]
        extra = samples.extra()
        del extra[FINAL_VALUE]

        def estimate(name: str) -> Array:
            begin = self._stream.log.begin
            return samples.each(lambda stream, rows, envs: self._estimates[name][rows - begin, envs])

        def split(array: Array) -> Array:
            return array.reshape(*mask.shape, *array.shape[1:])

        fields = {
            "obs": spaces.unflatten(schema.obs_tree, leaves),
            "action": spaces.unflatten(schema.action_tree, [samples.values(c) for c in schema.action_columns]),
            "reward": samples.resident(REWARD),
            "value": extra.pop(VALUE),
            "log_prob": extra.pop(LOG_PROB),
            **{name: estimate(name) for name in self._estimates},
            "terminated": samples.resident(TERMINATED),
            "truncated": samples.resident(TRUNCATED),
            "extra": extra,
        }
        split_fields = {name: map_arrays(split, value) for name, value in fields.items()}
        return {**split_fields, "index": ids, "mask": mask}

    def _read(self, ids: Ids, find: Callable[[], tuple[Samples, Array]]) -> SomeBatch:
        """Return the batch of the samples and the mask that ``find`` gives."""
        with self.engine.lock:
            self._check_finished()
            samples, mask = find()
            batch = self._batch(samples, ids, mask)
        samples.reads.finish()
        if not self.normalize_advantage:
            return batch
        given: Any = batch
        return dataclasses.replace(given, advantage=normalized(given.advantage, self._counted(batch)))  # type: ignore[no-any-return]

    def _counted(self, batch: SomeBatch) -> Array:
        """Return the mask of the advantages that are normalised, of the shape of their first axes."""
        mask: Array = vars(batch)["mask"]
        return mask

    def _check_finished(self) -> None:
        self.engine.check_open()
        if not self._estimates:
            raise StateError("the rollout has no advantages: call finish(last_value) after the last step")

    # State

    def _restore(self, arrays: Mapping[str, Array], name: str) -> None:
        log = self._stream.log
        shape = (log.end - log.begin, log.num_envs, *self._value_shape)
        try:
            estimates = {key: np.array(arrays[key], np.float32).reshape(shape) for key in ("advantage", "returns")}
            self._computed.finished = (log.begin, log.end), estimates
        except (KeyError, ValueError) as error:
            raise CorruptionError(f"the advantages of checkpoint {name!r} cannot be read: {error!r}") from error


def true_values(values: Array, normalizer: Normalizer | None) -> NDArray[np.float64]:
    """Return the true values of those that a normalizer normalises."""
    given = values if normalizer is None else check_array("denormalize's result", normalizer.denormalize(values))
    return given.astype(np.float64)


def estimated(
    reward: Array, value: Array, next_value: Array, terminated: Array, cut: Array, gamma: float, lambda_: float,
    td_targets: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """Return returns and advantages of steps, as :mod:`.returns` has them: TD(lambda) targets, or those of GAE."""
    if td_targets:
        targets = returns.td_lambda(reward, next_value, terminated, cut, gamma, lambda_)
        return targets, targets - value
    advantage = returns.gae(reward, value, next_value, terminated, cut, gamma, lambda_)
    return advantage + value, advantage


def normalized(advantage: Array, counted: Array) -> Array:
    """Return advantages with mean 0 and standard deviation 1 over those counted, 0 elsewhere, a single one as it is."""
    held = advantage[counted]
    if held.size < 2:
        return advantage
    scaled: Array = (advantage - held.mean()) / (held.std() + EPSILON)
    scaled[~counted] = 0.0
    return scaled


def _checked(what: str, given: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = rounded(what, given, np.float64)
    if array.shape != shape and not (shape[:1] == (1,) and array.shape == shape[1:]):
        raise InputError(f"{what} must have the shape {shape}, got {array.shape}")
    return array.reshape(shape)
