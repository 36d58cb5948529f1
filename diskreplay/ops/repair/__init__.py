"""The repair of a damaged store; :mod:`diskreplay.ops.repair.store_repair` says how."""

from diskreplay.ops.repair.store_repair import Repaired, repair

__all__ = ["Repaired", "repair"]
