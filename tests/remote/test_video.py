"""Video and relabelled rewards of a store under a URL."""

from __future__ import annotations

import base64
import io
import pathlib

import numpy as np
import pytest
from helpers.packets import clip
from helpers.testing.faulty_objects import SimulatedObjects
from ops.test_video import EPISODE, make
from PIL import Image
from remote.world import URL, under

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.ops.convert import export
from diskreplay.ops.inspect import inspect
from diskreplay.ops.relabel import relabel
from diskreplay.ops.show import show
from diskreplay.remote.push import Push
from diskreplay.report import serve
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store


def test_what_is_under_a_url_is_shown(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKREPLAY_MIRROR", str(tmp_path / "mirror"))
    make(path, extra=False, later={"shaped": "float32"})
    objects, frames = SimulatedObjects(), clip(count=25).shown
    Push(Store(path, LocalFiles()), "0", objects).run()
    with under(objects):
        assert show(URL, tmp_path / "a.png", episode=1, scale=1).frames == EPISODE + 1
        assert [one.video["codec"] for one in inspect(URL).columns if one.video] == ["h264"]
        viewer = serve.Viewer(URL)
        key = viewer.answer("overview", {})["episodes"]["key"][1]
        strip = viewer.answer("strip", {"key": key, "camera": "obs/camera", "first": "0", "every": "1"})
        sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(strip["src"].partition(",")[2]))))
        np.testing.assert_array_equal(sheet[:, : 64 * (EPISODE + 1)], np.hstack(frames[EPISODE : 2 * EPISODE + 1]))
        with pytest.raises(InputError, match="24 of 24 transitions have no finite value of 'shaped'"):
            dr.open(URL, reward_column="shaped")
        relabel(path, lambda episode: -episode.reward)
        Push(Store(path, LocalFiles()), "0", objects).run()
        with dr.open(URL, reward_column="shaped") as rb:
            assert rb.get(rb.items()).reward.tolist() == [-float(number) for number in range(24)]
        assert export(URL, tmp_path / "copy", "store", reward_column="shaped").lost == {}
