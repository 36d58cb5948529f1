"""The examples of docs/formats.md: what the commands write, each library reads by the lines that stand there."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shlex

import pytest
from helpers.commands import said
from interop.test_formats_dopamine import buffers  # noqa: F401  # Dopamine with what it uses of TensorFlow

ROOT = pathlib.Path(__file__).parent.parent.parent
SECTION = (ROOT / "docs" / "formats.md").read_text().split("## Reading it there\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"```py\n(.*?)```", SECTION, re.DOTALL)

READ = {
    "h5py": "frames.shape == (64, 84, 84)",
    "numpy": "frames.shape == (400, 84, 84) and ends.tolist() == [149, 299, 399]",
    "zarr": "frames.shape == (150, 84, 84)",
    "minari": "frames.shape == (151, 84, 84)",
    "d3rlpy": "batch.observations.shape == (32, 1, 84, 84)",
    "robomimic": "sequence.shape == (10, 84, 84)",
    "dopamine": "state.shape == (32, 84, 84, 4)",
    "tfrecord": "len(steps) == 101",
    "datasets": "len(dataset) == 400 and frame.size == (84, 84)",
}
"""What each block must have read, by its last module."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where the commands were run."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "datasets").symlink_to(ROOT / "datasets")
    (commands,) = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in commands.splitlines():
            said(*shlex.split(line)[1:])
    return folder


def modules(block: str) -> list[str]:
    return re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: modules(block)[-1])
def test_examples(
    block: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(folder)
    for name in ("MINARI_DATASETS_PATH", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(folder / "cache"))
    for module in modules(block):
        if module == "dopamine":
            request.getfixturevalue("buffers")
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:  # the folder of our samples looks like a package, too
            pytest.skip(f"{module} is in the interop extra, or installed by `make interop`")
    names: dict[str, object] = {}
    exec(compile(block, "docs/formats.md", "exec"), names)
    assert eval(READ[modules(block)[-1]], names)
