"""The room of an open store: its streams, the one that is written, and when rows become durable."""
