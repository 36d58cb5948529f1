"""The room of durable rows: files, chunks, shards, commits, streams and stores, and how rows are read back.

It knows columns of bytes, but no spaces, batches or samplers.

- Every read and write of a store goes through the interface in ``files``.
- A commit record never names bytes that are not durable: chunks and indexes are appended and synced before it.
- A shard is deleted only after a record that no longer needs it, and never while a checkpoint needs it.
- A stream has at most one writer, which holds the lock of its directory.
- Each chunk and each index ends in its checksum, and each document of ours has one.
"""
