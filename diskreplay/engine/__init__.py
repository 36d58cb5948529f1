"""The room of an open store: its streams, the one that is written, and when rows become durable.

Buffers, mixtures, adapters and commands stand on it. It chooses no ids and shapes no batch.

- An argument is checked whole before anything changes.
- Whoever takes both locks takes ``write_lock`` first.
- A change in RAM that is cut short stops the writer, and nothing is read any more until the store is opened again.
- A batch is drawn with the index locked, and read without the lock.
"""
