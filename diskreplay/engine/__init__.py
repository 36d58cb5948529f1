"""An open store: its streams, the one that is written, and when rows become durable.

Buffers, mixtures, adapters and commands use this room. It chooses no ids and shapes no batch.

- All arguments are checked before anything changes.
- A thread that needs both locks takes ``write_lock`` before ``lock``.
- If a change in RAM is cut short, the writer stops, and no read works until the store is opened again.
- A batch is drawn with ``lock`` held, and read without it.
"""
