"""The buffers that a user holds, which add, sample, commit and checkpoint."""
