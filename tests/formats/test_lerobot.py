"""LeRobotDatasets that are wrong, and videos of several kinds; ``tests/robots`` has those that LeRobot makes."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats import lerobot_v2
from formats.lerobot_v2 import decoded
from formats.roundtrip import refused
from gymnasium import spaces
from helpers.diff import diff

import diskreplay as dr
from diskreplay import formats, video
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.files import lerobot_stats
from diskreplay.formats.selection import Selection
from diskreplay.ops.combine import merge
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.edit import edit
from diskreplay.ops.verify import verify
from diskreplay.recording.video_encoding import VideoEncoder

LENGTHS = (4, 7)
CAMERA = "videos/observation.camera/chunk-000/file-000.mp4"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset of two episodes with a camera, whose video is written by PyAV alone."""
    folder = tmp_path_factory.mktemp("lerobot")
    space = spaces.Dict(camera=spaces.Box(0, 255, (64, 64, 3), np.uint8), state=spaces.Box(-9, 9, (2,), np.float32))
    rng = np.random.default_rng(0)
    with dr.ReplayBuffer.create(folder / "a.replay", space, spaces.Box(-1, 1, (2,), np.float32), capacity=99) as rb:
        for length in LENGTHS:
            every = [{"camera": frame(at), "state": rng.normal(size=2).astype(np.float32)} for at in range(length + 1)]
            for at in range(length):
                rb.add(every[at], rng.random(2, np.float32), 1.0, every[at + 1], at == length - 1, False)
    export(folder / "a.replay", folder / "set", "lerobot", allow_loss=True)
    return folder / "set"


@pytest.fixture
def dataset(made: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copytree(made, tmp_path / "set")
    return tmp_path / "set"


def frame(at: int) -> Any:
    return np.add.outer(np.arange(64), np.arange(64))[..., None].astype(np.uint8) + np.array([9 * at, 0, 50], np.uint8)


def film(target: pathlib.Path, count: int, codec: str = "libx264", fps: int = 30, **options: str) -> None:
    """A video of so many frames."""
    lerobot_v2.film(target, [frame(at) for at in range(count)], codec, fps, **options)


def frames(store: Any) -> Any:
    """The pictures of a store, decoded from its rows by PyAV alone."""
    with dr.ReplayBuffer.open(store, mode="r", view=dr.Transition(), ragged="lists") as rb:
        facts = rb.schema.ragged["obs/camera"].video
        found = []
        for value in rb.get(rb.items()).obs["camera"]:
            packets = video.records(value)
            context = av.CodecContext.create({"av1": "libdav1d"}.get(facts.codec, facts.codec), "r")
            context.extradata = facts.parameters[packets[0].parameters]
            shown = [each for packet in packets for each in context.decode(av.Packet(bytes(packet.data)))]
            found.append([*shown, *context.decode(None)][-1].to_ndarray(format="rgb24"))
    return np.stack(found)


def changed(file: pathlib.Path, **values: Any) -> None:
    """Other values of a JSON document."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def column(file: pathlib.Path, name: str, change: Callable[[Any], Any]) -> None:
    """Other values of a column of Parquet."""
    table = pq.read_table(file)
    values = pa.array(change(table[name].to_pylist()), table.schema.field(name).type)
    pq.write_table(table.set_column(table.column_names.index(name), table.schema.field(name), values), file)


def cut_short(file: pathlib.Path, length: int | None = None) -> None:
    """A video whose download stopped: before its first frame, or where it is told."""
    film(file, 11, bf="0")
    data = file.read_bytes()
    file.write_bytes(data[: length or data.index(b"mdat") + 4])


def in_two_files(dataset: pathlib.Path) -> None:
    """The second episode's frames are those of a second video."""
    for name, values in (("file_index", [0, 1]), ("from_timestamp", [0.0, 0.0]), ("to_timestamp", [4 / 30, 7 / 30])):
        column(dataset / EPISODES, f"videos/observation.camera/{name}", lambda _, values=values: values)


def without(dataset: pathlib.Path, root: str) -> None:
    """As if somebody else had written a dataset without such features."""
    (dataset / "meta/diskreplay.json").unlink()
    features = json.loads((dataset / "meta/info.json").read_text())["features"]
    left = {key: one for key, one in features.items() if not key.startswith(root)}
    changed(dataset / "meta/info.json", features=left)


B_FRAMES = {"x264-params": "b-adapt=0:bframes=2:scenecut=0"}
ROWS, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
WRONG: list[tuple[str, Callable[[pathlib.Path], Any], str]] = [
    (
        "version 1",
        lambda d: changed(d / "meta/info.json", codebase_version="v1.6"),
        "of version v1.6, and v2.0, v2.1 and v3.0 are read",
    ),
    ("another fps", lambda d: changed(d / "meta/info.json", fps=15), "at 15 frames a second"),
    ("no fps", lambda d: changed(d / "meta/info.json", fps="fast"), "fps, as a number"),
    (
        "no size of files",
        lambda d: changed(d / "meta/info.json", video_files_size_in_mb="video"),
        "must have a number as video_files_size_in_mb, got video",
    ),
    ("no features", lambda d: changed(d / "meta/info.json", features={}), "has no features"),
    ("no observation", lambda d: without(d, "observation"), "begins with 'observation', and info.json has none"),
    ("no action", lambda d: without(d, "action"), "begins with 'action', and info.json has none"),
    ("no statistics", lambda d: changed(d / "meta/stats.json", action=5), "stats.json is no object of features"),
    ("no tasks", lambda d: (d / "meta/tasks.parquet").unlink(), "'meta/tasks.parquet' is missing"),
    ("no episodes", lambda d: (d / EPISODES).unlink(), "no file below meta/episodes"),
    ("no rows", lambda d: (d / ROWS).unlink(), "no file below data"),
    ("no video", lambda d: (d / CAMERA).unlink(), "file-000.mp4' is missing"),
    ("a video elsewhere", lambda d: changed(d / "meta/info.json", video_path="../x.mp4"), "no file within the dataset"),
    ("no pattern", lambda d: changed(d / "meta/info.json", video_path="{x}"), "no pattern of a file's name"),
    ("half a video", lambda d: (d / CAMERA).write_bytes((d / CAMERA).read_bytes()[:900]), "file-000.mp4"),
    ("a video without frames", lambda d: cut_short(d / CAMERA), "ends before its first frame; download"),
    ("a byte less", lambda d: cut_short(d / CAMERA, -1), "file-000.mp4' is cut short; download"),
    ("no video at all", lambda d: (d / CAMERA).write_bytes(b"no video"), "file-000.mp4' is damaged"),
    ("frames missing", lambda d: film(d / CAMERA, 9, bf="0"), "has no frame 5 of 7 at 0.3000 s; the video ends before"),
    ("a slower film", lambda d: film(d / CAMERA, 11, fps=15, bf="0"), r"the next frame is at 0.0667 s"),
    (
        "frames that refer to later ones",
        lambda d: film(d / CAMERA, 20, **B_FRAMES),
        "file-000.mp4' has frames .*B-frames.*--frames decoded",
    ),
    ("another codec", lambda d: film(d / CAMERA, 11, "mpeg4"), "as mpeg4; import it with --frames decoded"),
    (
        "an episode less",
        lambda d: column(d / EPISODES, "length", lambda v: [4, 6]),
        "has 11 rows below data, and 10 steps",
    ),
    ("other numbers", lambda d: column(d / EPISODES, "episode_index", lambda v: [1, 0]), "number them from 0"),
    ("odd rows", lambda d: column(d / ROWS, "frame_index", lambda v: [*v[:-1], 9]), "frame 6 of episode 1, has the"),
    ("odd times", lambda d: column(d / ROWS, "timestamp", lambda v: [*v[:-1], 0.5]), "has the timestamp 0.5"),
]


@pytest.mark.parametrize(("change", "said"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_what_is_wrong_is_said(change: Any, said: str, dataset: pathlib.Path) -> None:
    change(dataset)
    refused(dataset, said)


@pytest.mark.parametrize("name", ["pyarrow", "av"])
def test_a_library_that_is_missing(name: str, dataset: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == name else found(module))
    with pytest.raises(ModuleNotFoundError, match=rf"need {name}: pip install 'diskreplay\[lerobot\]'"):
        import_dataset(dataset, dataset.parent / "a.replay")


def test_wrong_folders(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for folder in (dataset / "meta", dataset / "videos"):
        with pytest.raises(InputError, match="of no format known here"):
            import_dataset(folder, tmp_path / "a.replay")
    with pytest.raises(InputError, match=r"info\.json"):
        import_dataset(dataset / "meta", tmp_path / "a.replay", "lerobot")
    with pytest.raises(InputError, match="frames must be 'packets' or 'decoded'"):
        import_dataset(dataset, tmp_path / "a.replay", frames="all")  # type: ignore[arg-type]
    np.savez(tmp_path / "a.npz", observations=np.zeros((3, 1)))
    with pytest.raises(InputError, match="npz datasets have no videos"):
        import_dataset(tmp_path / "a.npz", tmp_path / "a.replay", "npz", frames="decoded")


def test_packets_show_the_frames_of_the_file(dataset: pathlib.Path, path: str, tmp_path: pathlib.Path) -> None:
    import_dataset(dataset, path)
    wanted = decoded(dataset / CAMERA)
    assert np.array_equal(frames(path), wanted)
    import_dataset(dataset, tmp_path / "b.replay", frames="decoded")
    with dr.ReplayBuffer.open(tmp_path / "b.replay", mode="r", view=dr.Transition()) as rb:
        assert np.array_equal(rb.get(rb.items()).obs["camera"], wanted)
    assert verify(path).ok


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("key_frames", ["1", "4", "250"])
@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9"])
def test_codecs(codec: str, key_frames: str, dataset: pathlib.Path, path: str, tmp_path: pathlib.Path) -> None:
    """Groups go across episodes: an episode then begins within one, and what comes before goes out with it."""
    options = {"x265-params": f"bframes=0:keyint={key_frames}:log-level=none"} if codec == "libx265" else {"bf": "0"}
    film(dataset / CAMERA, 11, codec, g=key_frames, **({} if codec == "libvpx-vp9" else options))
    import_dataset(dataset, path)
    wanted = decoded(dataset / CAMERA)
    assert np.array_equal(frames(path), wanted)
    edit(path, tmp_path / "cut.replay", steps=[slice(0, 2)])
    for store, left in ((path, np.arange(11)), (tmp_path / "cut.replay", [2, 3, *range(6, 11)])):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(tmp_path / "b.replay", ignore_errors=True)
        assert export(store, tmp_path / "out", "lerobot").lost == {}
        import_dataset(tmp_path / "out", tmp_path / "b.replay")
        assert np.array_equal(frames(tmp_path / "b.replay"), [wanted[at] for at in left])


def test_packets_go_out_without_a_word_of_the_encoder(
    dataset: pathlib.Path, path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder is made to write packets, too. SVT-AV1 looks once in a process whether it is to speak."""
    import_dataset(dataset, path)
    monkeypatch.delenv("SVT_LOG", raising=False)
    export(path, tmp_path / "out", "lerobot")
    assert os.environ["SVT_LOG"] == "1"


def test_recorded_av1_goes_out_with_what_players_look_for(tmp_path: pathlib.Path) -> None:
    """A recorder's packets say all in themselves; an MP4 file must say it before them, too."""
    encoder = VideoEncoder(dr.Video("av1", 64, 64))
    encoded = [*encoder.encode(frame(0)), *encoder.encode(frame(1)), *encoder.finish()]
    first, second = (np.frombuffer(video.record(one.packet, one.key), np.uint8) for one in encoded)
    values = [{"camera": first}, {"camera": np.concatenate([first, second])}]
    space = spaces.Dict(camera=spaces.Box(0, 255, (64, 64, 3), np.uint8))
    facts = {"camera": dr.Video("av1", 64, 64)}
    with dr.ReplayBuffer.create(tmp_path / "a", space, spaces.Discrete(2), capacity=9, video=facts) as rb:
        rb.add(values[0], 0, 0.0, values[1], False, False)
        rb.add(values[1], 0, 0.0, values[1], True, False)
    export(tmp_path / "a", tmp_path / "out", "lerobot")
    _, _, box = (tmp_path / "out" / CAMERA).read_bytes().partition(b"av1C")
    assert box[0] == 0x81, "the marker and version with which the box begins"
    import_dataset(tmp_path / "out", tmp_path / "b")
    assert np.array_equal(frames(tmp_path / "b"), frames(tmp_path / "a"))


def test_key_frames_with_the_same_bytes_go_out(tmp_path: pathlib.Path) -> None:
    """A camera before which nothing moves, whose encoder begins anew at each step."""
    camera = dr.Video("h264", 64, 64)
    encoder = VideoEncoder(camera)
    (one,) = [*encoder.encode(frame(0)), *encoder.finish()]
    obs = {"camera": np.frombuffer(video.record(one.packet, True), np.uint8)}
    space = spaces.Dict(camera=spaces.Box(0, 255, (64, 64, 3), np.uint8))
    with dr.ReplayBuffer.create(tmp_path / "a", space, spaces.Discrete(2), capacity=9, video={"camera": camera}) as rb:
        for end in (False, False, True):
            rb.add(obs, 0, 0.0, obs, end, False)
    assert export(tmp_path / "a", tmp_path / "out", "lerobot").lost == {}
    import_dataset(tmp_path / "out", tmp_path / "b")
    assert np.array_equal(frames(tmp_path / "b"), frames(tmp_path / "a"))


def test_files_with_other_parameters(dataset: pathlib.Path, path: str, tmp_path: pathlib.Path) -> None:
    """Each file has its own; what goes out has a file for each."""
    film(dataset / CAMERA, 4, bf="0", profile="baseline")
    film((dataset / CAMERA).with_name("file-001.mp4"), 7, bf="0", profile="high")
    in_two_files(dataset)
    import_dataset(dataset, path)
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        assert len(rb.schema.ragged["obs/camera"].video.parameters) == 2
    before = frames(path)
    export(path, tmp_path / "out", "lerobot")
    assert len(list((tmp_path / "out").glob("videos/*/*/*.mp4"))) == 2
    import_dataset(tmp_path / "out", tmp_path / "b.replay")
    assert np.array_equal(frames(tmp_path / "b.replay"), before)


def test_other_parameters_are_not_appended_but_merged(dataset: pathlib.Path, path: str, tmp_path: pathlib.Path) -> None:
    film(dataset / CAMERA, 11, bf="0", profile="baseline")
    import_dataset(dataset, path)
    film(dataset / CAMERA, 11, bf="0", profile="high")
    with pytest.raises(InputError, match="import it into a store of its own; 'diskreplay merge' joins the two"):
        import_dataset(dataset, path, append=True)
    import_dataset(dataset, tmp_path / "b.replay")
    merge(tmp_path / "both.replay", [path, tmp_path / "b.replay"])
    assert len(frames(tmp_path / "both.replay")) == 22


def test_tasks_of_another_dataset_are_not_mixed_up(dataset: pathlib.Path, path: str, tmp_path: pathlib.Path) -> None:
    shutil.copytree(dataset, tmp_path / "other")
    for folder, text in ((dataset, "push"), (tmp_path / "other", "pull")):
        (folder / "meta/diskreplay.json").unlink()  # as others write them
        for file, name in (("meta/tasks.parquet", "task"), (EPISODES, "tasks")):
            column(folder / file, name, lambda v, text=text: [[text] if isinstance(one, list) else text for one in v])
        column(folder / EPISODES, "diskreplay/facts", lambda v: [None] * len(v))
    import_dataset(dataset, path, frames="decoded")
    import_dataset(tmp_path / "other", path, frames="decoded", append=True)
    with pytest.raises(InputError, match=r"are \['push'\], and its facts say \['pull'\]"):
        export(path, tmp_path / "out", "lerobot", allow_loss=True)
    export(path, tmp_path / "out", "lerobot", selection=Selection(episodes=slice(0, 2)), allow_loss=True)


@pytest.mark.parametrize(
    "texts", [["push", "pull"], ["push\nhard", "pull\x00"], ["push" * 999, "pull"]], ids=["plain", "odd", "long"]
)
def test_tasks_in_another_order_are_not_mixed_up(
    texts: list[str], dataset: pathlib.Path, path: str, tmp_path: pathlib.Path
) -> None:
    """Each episode has both tasks, so that the texts alone do not tell whose numbers they are."""
    shutil.copytree(dataset, tmp_path / "other")
    for folder, order in ((dataset, texts), (tmp_path / "other", texts[::-1])):
        (folder / "meta/diskreplay.json").unlink()  # as others write them
        tasks = pq.read_table(folder / "meta/tasks.parquet")
        numbered = pa.table({"task_index": [0, 1], "task": order}).replace_schema_metadata(tasks.schema.metadata)
        pq.write_table(numbered, folder / "meta/tasks.parquet")
        column(folder / ROWS, "task_index", lambda v: [at % 2 for at in range(len(v))])
        column(folder / EPISODES, "tasks", lambda v, texts=texts: [texts for _ in v])
        column(folder / EPISODES, "diskreplay/facts", lambda v: [None] * len(v))
    import_dataset(dataset, path, frames="decoded")
    export(path, tmp_path / "one", "lerobot", allow_loss=True)
    assert pq.read_table(tmp_path / "one/meta/tasks.parquet")["task"].to_pylist() == texts
    import_dataset(tmp_path / "other", path, frames="decoded", append=True)
    with pytest.raises(InputError, match=r"episode 2 has the task_index .* or another order"):
        export(path, tmp_path / "out", "lerobot", allow_loss=True)


TEXTS = ["reach", "grasp\nfirmly", "é語🙂", ""]


def test_texts_come_back(path: str, tmp_path: pathlib.Path) -> None:
    """Text spaces go out and come in, also where only others' files say what they hold; other ragged columns do not."""
    said = spaces.Text(30, min_length=0, charset="".join(sorted({*"".join(TEXTS)})))
    space = spaces.Dict(at=spaces.Box(-1, 1, (2,)), said=said)
    columns = {"tokens": ((None,), np.int32), "count": np.int64}
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(3), capacity=99, columns=columns) as rb:
        for at in range(12):
            now, after = ({"said": TEXTS[step % 4], "at": np.full(2, step / 16)} for step in (at, at + 1))
            rb.add(now, 1, 0.0, after, False, at % 6 == 5, tokens=[at], count=at)
    lost = export(path, tmp_path / "set", "lerobot", allow_loss=True).lost
    assert lost == {"final observations": 2, "values of the ragged column 'tokens'": 12}
    import_dataset(tmp_path / "set", tmp_path / "b")
    (tmp_path / "set/meta/diskreplay.json").unlink()
    for file in (tmp_path / "set/data").glob("*/*"):
        table = pq.read_table(file)
        pq.write_table(table.append_column("subtask", table["observation.said"]), file, row_group_size=5)
    more = {**info(tmp_path / "set")["features"], "subtask": {"dtype": "string", "shape": [1], "names": None}}
    changed(tmp_path / "set/meta/info.json", features=more)
    import_dataset(tmp_path / "set", tmp_path / "c")
    assert export(tmp_path / "c", tmp_path / "again", "lerobot").lost == {}
    import_dataset(tmp_path / "again", tmp_path / "d")
    for store, name in (("b", "said"), ("c", "observation.said"), ("d", "observation.said")):
        with dr.ReplayBuffer.open(tmp_path / store, mode="r", view=dr.Transition(), ragged="lists") as rb:
            batch = rb.get(rb.items())
            for each in [batch.obs[name], *([] if store == "b" else [batch.extra["subtask"]])]:
                assert [row.tobytes().decode("utf-32-le") for row in each] == TEXTS * 3
            assert rb.schema.observation_space[name].characters == said.characters
            assert rb.schema.observation_space[name].max_length == (30 if store == "b" else 12)
    assert diff(tmp_path / "c", tmp_path / "d") is None


def test_what_is_not_read_is_named(dataset: pathlib.Path, path: str) -> None:
    """Files that nobody asked for, features of other dtypes, columns that are no features; our own has none."""
    assert import_dataset(dataset, path).ignored == ()
    assert import_dataset(dataset, path, append=True).ignored == ()
    for name in ("README.md", ".gitattributes", "images/top/episode_000000/frame_000001.png", "data/notes.parquet"):
        (dataset / name).parent.mkdir(parents=True, exist_ok=True)
        (dataset / name).write_text("x")
    (dataset / "images/top/episode_000000/frame_000002.png").write_text("x")
    shutil.copy(dataset / CAMERA, (dataset / CAMERA).with_name("file-007.mp4"))
    table = pq.read_table(dataset / ROWS)
    pq.write_table(table.append_column("odd", table["timestamp"]), dataset / ROWS)
    sound = {"dtype": "audio", "shape": [1], "names": None}
    changed(dataset / "meta/info.json", features={**info(dataset)["features"], "observation.sound": sound})
    before = frames(path)
    assert import_dataset(dataset, dataset.parent / "b").ignored == (
        ".gitattributes", "README.md", "data/notes.parquet", "images/top/episode_*/frame_*.png (2)",
        "observation.sound", "odd", "videos/observation.camera/chunk-*/file-*.mp4 (1)",
    )  # fmt: skip
    assert np.array_equal(frames(dataset.parent / "b"), before[: sum(LENGTHS)])


@pytest.mark.parametrize("described", [True, False])
def test_a_camera_that_is_left_out_is_not_opened(described: bool, dataset: pathlib.Path) -> None:
    """Nor is what an episode's end tells lost with it."""
    (dataset / CAMERA).write_bytes(b"no video")
    state, camera = "state", "camera"
    if not described:
        (dataset / "meta/diskreplay.json").unlink()
        state, camera = "observation.state", "observation.camera"
    with formats.get("lerobot").read(dataset, Choice(columns=(f"obs/{state}",))) as source:
        assert [*source.layout.obs, *source.layout.columns] == [f"obs/{state}"]
        assert {"observation.camera", "videos/observation.camera/chunk-*/file-*.mp4 (1)"} <= {*source.names.unread()}
        blocks = list(source.blocks())
        ended = np.concatenate([each.terminated for each in blocks])
    assert ended.nonzero()[0].tolist() == [3, 10]
    with (
        pytest.raises(InputError, match=rf"no column 'x' to choose; there are .*obs/{camera}"),
        formats.get("lerobot").read(dataset, Choice(columns=("x",))),
    ):
        pass


def test_a_column_that_is_no_text_is_refused(dataset: pathlib.Path) -> None:
    features = {**info(dataset)["features"], "observation.state": {"dtype": "string", "shape": [1], "names": None}}
    changed(dataset / "meta/info.json", features=features)
    refused(dataset, "has no one column 'observation.state' of texts")


def numbers(path: pathlib.Path, first: float, **provenance: Any) -> pathlib.Path:
    """A store of two episodes of five steps, whose observations count from ``first``."""
    with dr.ReplayBuffer.create(
        path, spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (1,)), capacity=10, provenance=provenance
    ) as rb:
        for at in range(10):
            obs = np.full(2, first + at, np.float32)
            rb.add(obs, [0.0], 0.0, obs + (at % 5 < 4), False, at % 5 == 4)
    return path


def two_sets(folder: pathlib.Path, *told: tuple[float, dict[str, Any]]) -> pathlib.Path:
    """A store of the episodes of two datasets, as others write them."""
    for number, (first, provenance) in enumerate(told):
        dataset = folder / f"set-{number}"
        export(numbers(folder / f"{number}", first, **provenance), dataset, "lerobot", allow_loss=True)
        (dataset / "meta/diskreplay.json").unlink()
        import_dataset(dataset, folder / "both", append=number > 0)
    return folder / "both"


def info(dataset: pathlib.Path, name: str = "info") -> Any:
    return json.loads((dataset / f"meta/{name}.json").read_text())


@pytest.mark.parametrize("fps", [10, 29.97, None])
def test_the_frames_a_second_are_those_of_the_provenance(fps: float | None, tmp_path: pathlib.Path) -> None:
    export(numbers(tmp_path / "a", 0, **({"fps": fps} if fps else {})), tmp_path / "set", "lerobot", allow_loss=True)
    assert info(tmp_path / "set")["fps"] == (fps or 30)
    import_dataset(tmp_path / "set", tmp_path / "b")
    with dr.ReplayBuffer.open(tmp_path / "b", mode="r") as rb:
        assert rb.provenance.get("fps") == fps


def test_statistics_of_another_dataset_do_not_go_out(tmp_path: pathlib.Path) -> None:
    """A second dataset whose episodes are as long as those of the first."""
    chosen = Selection(episodes=slice(2, 4))
    export(two_sets(tmp_path, (0, {}), (1000, {})), tmp_path / "out", "lerobot", selection=chosen, allow_loss=True)
    assert info(tmp_path / "out", "stats")["observation.state"]["min"] == [1000.0, 1000.0]


def test_what_lerobots_tools_wrote_goes_out_as_it_came(
    dataset: pathlib.Path, path: str, tmp_path: pathlib.Path
) -> None:
    """Episodes taken away keep the statistics of their old numbers, and a conversion tells fps of each feature."""
    (dataset / "meta/diskreplay.json").unlink()
    features, stats = info(dataset)["features"], info(dataset, "stats")
    changed(dataset / "meta/info.json", features={key: {**one, "fps": 30} for key, one in features.items()})
    old = {key: {**stats[key], "max": [900]} for key in ("index", "episode_index", "task_index")}
    changed(dataset / "meta/stats.json", **old)
    import_dataset(dataset, path)
    export(path, tmp_path / "out", "lerobot")
    for name in ("info", "stats"):
        assert info(tmp_path / "out", name) == info(dataset, name)


def test_features_keep_their_names_without_the_dataset(tmp_path: pathlib.Path) -> None:
    """As in a store that was merged from two datasets."""
    space = spaces.Dict({"observation.state": spaces.Box(-1, 1, (2,)), "goal": spaces.Box(-1, 1, (2,))})
    obs = {"observation.state": np.zeros(2, np.float32), "goal": np.ones(2, np.float32)}
    with dr.ReplayBuffer.create(tmp_path / "a", space, spaces.Discrete(2), capacity=9) as rb:
        rb.add(obs, 0, 0.0, obs, True, False)
    export(tmp_path / "a", tmp_path / "out", "lerobot", allow_loss=True)
    assert [*info(tmp_path / "out")["features"]][:3] == ["observation.goal", "observation.state", "action"]


def test_statistics_that_are_no_numbers_are_computed_again(
    dataset: pathlib.Path, path: str, tmp_path: pathlib.Path
) -> None:
    """LeRobot writes them for a state that is NaN, and provenance has JSON alone."""
    (dataset / "meta/diskreplay.json").unlink()
    stats = info(dataset, "stats")
    changed(dataset / "meta/stats.json", action={**stats["action"], "mean": [float("nan"), 0.0]})
    import_dataset(dataset, path)
    export(path, tmp_path / "out", "lerobot")
    assert info(tmp_path / "out", "stats")["action"] == stats["action"]


def test_times_of_other_frames_a_second_do_not_go_out(tmp_path: pathlib.Path) -> None:
    both = two_sets(tmp_path, (0, {"fps": 30}), (0, {"fps": 10}))
    with pytest.raises(InputError, match="episode 2 has timestamps that are not those of 30 frames a second"):
        export(both, tmp_path / "out", "lerobot", allow_loss=True)


def test_times_are_float32_after_hours(tmp_path: pathlib.Path) -> None:
    export(numbers(tmp_path / "a", 0, fps=0.000301), tmp_path / "set", "lerobot", allow_loss=True)
    assert import_dataset(tmp_path / "set", tmp_path / "b").transitions == 10


def test_a_later_file_that_begins_without_a_key_frame(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    film(dataset / CAMERA, 4, bf="0")
    film(tmp_path / "whole.mp4", 8, bf="0", g="250")
    second = (dataset / CAMERA).with_name("file-001.mp4")
    with av.open(str(tmp_path / "whole.mp4")) as whole, av.open(str(second), "w") as out:
        stream = out.add_stream_from_template(whole.streams.video[0])
        for at, packet in enumerate(packet for packet in whole.demux(video=0) if packet.size):
            if at:
                packet.pts = packet.dts = packet.pts - int(1 / 30 / packet.time_base)
                packet.stream = stream
                out.mux(packet)
    in_two_files(dataset)
    refused(dataset, r"file-001\.mp4' begins with a frame that is no key frame")


@pytest.mark.parametrize("facts", [{"tasks": "push"}, {"tasks": [1, 2]}, {"tasks": 5}, {"camera_stats": "x"}], ids=str)
def test_facts_of_the_users_are_no_error(facts: dict[str, Any], tmp_path: pathlib.Path) -> None:
    path = numbers(tmp_path / "a", 0)
    with dr.ReplayBuffer.open(path) as rb:
        rb.annotate_episode(**facts)
    export(path, tmp_path / "set", "lerobot", allow_loss=True)
    assert import_dataset(tmp_path / "set", tmp_path / "b").transitions == 10


def test_statistics_of_small_floats() -> None:
    for at in range(20):
        found = lerobot_stats.of_values(np.random.default_rng(at).normal(size=40).astype(np.float16))
        assert found["min"][0] <= found["q10"][0] <= found["q50"][0] <= found["q90"][0] <= found["max"][0]


def test_statistics_of_small_floats_that_are_far_apart() -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # of squares, as LeRobot takes them
        found = lerobot_stats.of_values(np.array([-60_000, 0, 60_000, 5, 6], np.float16))
    assert -60_000 <= found["q01"][0] <= found["q50"][0] <= found["q99"][0] <= 60_000


def test_statistics_of_the_largest_whole_numbers(tmp_path: pathlib.Path) -> None:
    columns = {"count": np.uint64, "pair": ((2,), np.uint64)}
    with dr.ReplayBuffer.create(
        tmp_path / "a", spaces.Box(-1, 1, (2,)), spaces.Discrete(3), capacity=9, columns=columns
    ) as rb:
        for at in range(9):
            pair = np.array([(1 << 63) + at, 1 << 63], np.uint64)
            rb.add([0, 0], 1, 0.0, [0, 0], False, at % 3 == 2, count=np.uint64((1 << 64) - 1 - at), pair=pair)
    export(tmp_path / "a", tmp_path / "set", "lerobot", allow_loss=True)
    (rows,) = (tmp_path / "set").glob("meta/episodes/*/*")
    episodes = pq.read_table(rows).to_pylist()
    assert [row["stats/count/max"] for row in episodes] == [[(1 << 64) - at] for at in (1, 4, 7)]
    assert info(tmp_path / "set", "stats")["pair"]["max"] == [(1 << 63) + 8, 1 << 63]
    import_dataset(tmp_path / "set", tmp_path / "b")
    with dr.ReplayBuffer.open(tmp_path / "b", mode="r") as rb:
        assert rb.get(rb.items()).extra["count"].max() == (1 << 64) - 1
