"""What a sample looks like: transitions made from rows at sampling time."""
