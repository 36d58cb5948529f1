"""What a store holds: its columns, their spaces, and how the ids of transitions name rows."""
