"""From ids to arrays: what is drawn is planned, read and put together here."""
