"""An open store: its streams, the one that is written, and when rows become durable; what the other rooms stand on."""
