"""The room of what is in RAM of a store: small columns, episodes and their facts, later values, trees of priorities.

It opens no file of a store, and takes no lock: the lock of the buffer that owns an index guards every call.

- The rings hold the rows of the window and its context; a row's place follows from its number.
- Reading a record of a log twice has the effect of reading it once.
- Only modules that are themselves loaded late import ``jit``, which imports numba.
"""
