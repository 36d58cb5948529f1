"""The README's examples run as they stand, one after another, in an empty directory."""

import pathlib
import re

README = pathlib.Path(__file__).parent.parent / "README.md"


def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
