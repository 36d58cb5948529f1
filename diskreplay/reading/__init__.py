"""The room that turns ids into arrays: a batch that is drawn is planned, read and put together here."""
