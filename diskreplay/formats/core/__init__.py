"""The parts that all formats share; nothing here knows a format, or a library that reads files.

- ``format`` says what a format is, ``layout`` what a dataset's steps look like, ``transitions`` how they travel.
- ``flat`` and ``episodes`` turn a dataset's arrays into transitions.
- ``reader`` checks what a format reads, ``untrusted`` what its files declare, ``output`` puts new ones in place.
- ``log_rows``, ``selection`` and ``recorder`` are the store's end: reading it, choosing from it, filling one.
"""
