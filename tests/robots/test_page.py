"""The programs of docs/robots.md, with a dataset that LeRobot makes in the place of PushT's."""

from __future__ import annotations

import pathlib
import re
import shlex
from typing import Any

import pytest
from helpers.commands import command
from robots.lerobot_datasets import ACTION, STATE, build, camera, opened

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "robots.md").read_text()


@pytest.mark.filterwarnings("ignore")
def test_programs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"observation.image": camera("video", 96, 96), "observation.state": STATE, "action": ACTION}
    build(tmp_path / "pusht", features, [40, 45])
    monkeypatch.chdir(tmp_path)
    for line in "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines():
        done = command(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    assert len(opened(tmp_path / "pusht-again")) == 85
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/robots.md", "exec"), names)
    assert names["frames"].shape == (64, 16, 96, 96, 3)
