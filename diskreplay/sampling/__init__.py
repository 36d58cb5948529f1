"""Which transitions a batch holds: distributions over ids, apart from storage and from what a sample looks like."""
