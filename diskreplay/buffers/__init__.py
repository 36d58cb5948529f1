"""What a user holds: buffers that add, sample, commit and checkpoint."""
