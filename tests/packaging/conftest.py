"""What can be tested of the package's files where only an installed wheel is imported."""

import pathlib

CLONE = (pathlib.Path(__file__).parents[2] / "diskreplay").is_dir()
collect_ignore = [] if CLONE else ["test_native.py", "test_project.py", "test_wheel.py"]
"""These build from the clone's files, or name them."""
