"""What a store holds in RAM: small columns, episodes and their facts, later values, trees of priorities.

This room opens no file of a store, and takes no lock. Its callers hold ``engine.lock``, which guards what is in RAM.

- A ``Table`` (``ring.py``) of rows holds those of the window and its context; row ``r`` stands at position
  ``r % length``.
- Entering a record of a log of bytes (``ByteLog``) twice has the same effect as entering it once.
- Only modules that are loaded late import ``jit``, because that imports numba.
"""
