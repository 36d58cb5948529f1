"""A pytest plugin: each dataset that Minari makes becomes a store, and the dataset that the store is exported to."""

from __future__ import annotations

import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import minari
import minari.data_collector.data_collector as collector
import minari.utils

from diskreplay.ops.convert import export, import_dataset

FORMATS = {"hdf5": "minari", "arrow": "minari-arrow"}


def through_a_store(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **options: Any) -> Any:
        dataset = make(*args, **options)
        folder = pathlib.Path(dataset.storage.data_path).parent
        with tempfile.TemporaryDirectory() as temporary:
            import_dataset(folder, f"{temporary}/a.replay")
            shutil.rmtree(folder)
            export(f"{temporary}/a.replay", folder, FORMATS[dataset.storage.FORMAT])
        return minari.load_dataset(dataset.spec.dataset_id)

    return made


collector.DataCollector.create_dataset = through_a_store(collector.DataCollector.create_dataset)
for module in (minari, minari.utils):
    module.create_dataset_from_buffers = through_a_store(minari.utils.create_dataset_from_buffers)
