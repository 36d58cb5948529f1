"""The room of durable rows: files, chunks, shards, commits, streams and stores, and how rows are read back."""
