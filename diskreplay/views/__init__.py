"""The room of views: a view says what one entry of a batch shows, and which rows can be an entry.

An entry is called an item. The views show transitions, sequences, episodes, values at given times, and transitions with
new goals. The room chooses no items and opens no file: the room ``sampling`` draws the ids of items, and the room
``reading`` reads the columns.

- A view never changes. Whether an id is an item depends on the view and the rows alone.
- ``draft`` returns a batch whose large columns are not yet read. :class:`~diskreplay.reading.reads.Reads` reads these
  afterwards.

docs/glossary.md explains words such as item, standing and window.
"""
