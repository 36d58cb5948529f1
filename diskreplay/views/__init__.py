"""The room of what a sample looks like: transitions, sequences and episodes, made from rows at sampling time.

It chooses no ids, and opens no file: a view asks ``Samples`` of the room ``reading`` for columns.

- A view is immutable, and the same ids are items of it in every process.
- A batch that a view drafts is complete after its reads.
"""
