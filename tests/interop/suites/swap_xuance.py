"""A pytest plugin: XuanCe's buffers are ours, wherever its modules have those of the same names."""

from __future__ import annotations

import sys

import xuance.common
import xuance.torch.agents

from diskreplay.compat import xuance as ours
from diskreplay.compat import xuance_marl

OURS = {
    getattr(xuance.common, name): getattr(module, name)
    for module in (ours, xuance_marl)
    for name in module.__all__
    if isinstance(getattr(xuance.common, name, None), type)
}
for name, module in list(sys.modules.items()):
    if name.startswith("xuance."):
        for attribute, value in list(vars(module).items()):
            if isinstance(value, type) and value in OURS:
                setattr(module, attribute, OURS[value])
