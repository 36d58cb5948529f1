"""The room that chooses the ids of a batch: distributions over ids and priorities, which never see rows."""
