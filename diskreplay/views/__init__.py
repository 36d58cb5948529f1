"""The shapes of samples: transitions, sequences and episodes, made from rows at sampling time."""
