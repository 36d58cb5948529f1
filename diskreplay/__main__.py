"""The command line as a module: ``python -m diskreplay`` is the command ``diskreplay``."""

from __future__ import annotations

from diskreplay_cli.start import main

main()
