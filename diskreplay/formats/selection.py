"""The choice of a part of a store to export."""

from __future__ import annotations

from diskreplay.formats.core.selection import EVERYTHING, Selection

__all__ = ["EVERYTHING", "Selection"]
