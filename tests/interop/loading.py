"""What loaders of other libraries give, beside what ``sample`` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers.configs import Config
from helpers.recording import Recording, reopen
from helpers.view_model import VIEWS

from diskreplay.errors import NotEnoughDataError


def check_loader(config: Config, path: str, same: Callable[[Any, Any], bool], **options: Any) -> None:
    """A loader with these options gives the batches that ``sample`` gives, under each view that has items."""
    with config.create(path) as buffer:
        Recording(config).add(buffer, 40, 0.2)
    compared = 0
    for view in VIEWS:
        opened: dict[str, Any] = {"mode": "r", "seed": 1, "view": view}
        with reopen(config, path, **opened) as one, reopen(config, path, **opened) as two:
            try:
                expected = [two.sample(3) for _ in range(5)]
            except NotEnoughDataError:
                continue
            with one.loader(3, **options) as loader:
                assert all(same(next(loader), batch) for batch in expected)
                compared += 1
    assert compared >= 2
