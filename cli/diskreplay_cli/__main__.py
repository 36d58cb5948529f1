"""The command ``diskreplay`` as a module: ``python -m diskreplay_cli``."""

from __future__ import annotations

from diskreplay_cli.start import main

main()
