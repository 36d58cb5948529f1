"""Every name of the documents is there, and has its line in the documentation."""

from __future__ import annotations

import importlib
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
NAMES = {
    "xuance": (
        "create_memory store_element sample_batch Buffer EpisodeBuffer DummyOnPolicyBuffer DummyOnPolicyBuffer_Atari "
        "DummyOffPolicyBuffer DummyOffPolicyBuffer_Atari RecurrentOffPolicyBuffer PerOffPolicyBuffer"
    ),
    "xuance_marl": (
        "BaseBuffer MARL_OnPolicyBuffer MARL_OnPolicyBuffer_RNN MeanField_OnPolicyBuffer COMA_Buffer COMA_Buffer_RNN "
        "MARL_OffPolicyBuffer MARL_OffPolicyBuffer_RNN MeanField_OffPolicyBuffer"
    ),
    "notebook": "Replay_Buffer Proportion_Replay_Buffer Rank_Replay_Buffer SumTree",
    "frames": "ReplayBuffer",
    "pearl": "BaseBuffer ReplayBuffer RolloutBuffer HERBuffer",
}
WITH_LIBRARY = "sb3", "torchrl", "cleanrl", "tianshou", "d3rlpy"
"""Modules that need their library to be imported."""
HEADINGS = ["Swap", "What is equal", "What differs, and why", "What is refused", "Its own tests"]


@pytest.mark.parametrize("module", NAMES)
def test_every_name_of_a_document(module: str) -> None:
    found = importlib.import_module(f"diskreplay.compat.{module}")
    index = re.search(rf"\| `compat\.{module}` \|.*", (DOCS / "compat.md").read_text())
    page = (DOCS / "compat" / f"{module}.md").read_text()
    assert index
    for name in NAMES[module].split():
        assert getattr(found, name).__doc__
        assert f"`{name}" in index[0]
        assert name in page, f"{name} has no line in docs/compat/{module}.md"


def test_the_pages_list_their_deviations() -> None:
    for module in (*NAMES, *WITH_LIBRARY):
        numbers = [
            int(number) for number in re.findall(r"^(\d+)\. ", (DOCS / "compat" / f"{module}.md").read_text(), re.M)
        ]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= 5


def test_the_pages_have_the_same_headings() -> None:
    pages = sorted((DOCS / "compat").glob("*.md"))
    assert {page.stem for page in pages} == {*NAMES, *WITH_LIBRARY}
    for page in pages:
        text = page.read_text()
        assert re.findall(r"^## (.*)$", text, re.M) == HEADINGS, page.name
        assert text.startswith(f"# `compat.{page.stem}`: ")
