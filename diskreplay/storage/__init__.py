"""Durable rows: files, shards, streams, stores, and how rows are read back."""
