"""What a store holds in RAM: small columns, episodes and their facts, later values, trees of priorities.

This room opens no file of a store, and takes no lock of a store. In an open store its callers hold ``engine.lock``,
which guards what is in RAM.

- A ``Table`` (``ring.py``) holds the rows of the window and of its context; row ``r`` stands at position ``r %
  length``.
- Entering a record of a log of bytes (``ByteLog``) twice has the same effect as entering it once.
- Trees, ranks and slots are arrays here; the core changes them.
"""
