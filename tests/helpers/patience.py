"""How long a test waits for what must come."""

PATIENCE = 800.0
"""Seconds: a machine that is loaded may stand still for minutes. pytest ends a case that hangs after 900."""
