"""What a stream holds, as a model: rows, tail, shards, cuts, on a disk that may lose power.

One store of two streams whose every call of the file system is a step. Each stream has a writer; that of stream 1 makes
checkpoints of both, a reader may look on. They do what docs/format.md says in its sections 4.8, 8 and 9, and after
each step ``World.check`` says whether what was promised is there. Bytes are symbolic: a file is a list of entries.

``disk`` is the file system, ``contents`` what files say, ``world`` what must hold, ``writer``, ``maker`` and ``reader``
who acts, ``bugs`` the mistakes that must be found, ``runs`` random programs, ``scenarios`` short ones in all schedules.
``python -m helpers.stream_model`` in ``tests`` runs as many as wanted.

Left out: codecs, object storage, patches as a table of their own (items stand for every other table), room on the disk,
documents of arrays, layouts, locks. When chunks move, when a tail begins and when ``oldest`` moves is drawn freely.
"""
