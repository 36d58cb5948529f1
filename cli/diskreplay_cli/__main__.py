"""``python -m diskreplay_cli``: the command ``diskreplay``."""

from __future__ import annotations

from diskreplay_cli.start import main

main()
