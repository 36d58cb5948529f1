"""Stand-ins for modules that a library imports and that a test does not need."""

from __future__ import annotations

import contextlib
import importlib
import sys
import unittest.mock
import warnings
from collections.abc import Iterator

XUANCE = ("wandb", "tensorboard", "torch.utils.tensorboard", "pyglet", "pyglet.resource", "cv2", "mpi4py", "imageio",
          "moviepy", "moviepy.editor")  # fmt: skip
"""What XuanCe imports for logs, videos and several machines."""


@contextlib.contextmanager
def stand_ins(names: tuple[str, ...]) -> Iterator[None]:
    """While modules are imported; taken away again, so that no other test meets one."""
    made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in names:
                try:
                    importlib.import_module(name)
                except ImportError:
                    sys.modules[name] = unittest.mock.MagicMock()
                    made.append(name)
            yield
        finally:
            for name in made:
                del sys.modules[name]
