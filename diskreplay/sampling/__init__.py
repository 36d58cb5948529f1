"""The room that chooses the ids of a batch: distributions over ids and priorities, which never see rows.

It reads nothing: a sampler is told of windows of ids, and asks for their standing.

- A sampler gives only ids that stand at NOW.
- The package's own samplers take all their randomness from the generator that they are given.
- A sampler with priorities belongs to one buffer.
"""
