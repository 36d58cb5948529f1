"""The room that turns ids into arrays: a batch that is drawn is planned, read and put together here.

It draws nothing, and knows no view's shape.

- A plan is made with the buffer's lock held, and read without it.
- The files that a plan needs stay open, on loan, until it is read.
- An array that was returned belongs to the caller: nobody writes to it again while the caller holds it.
- Compiled code and Python fill in the same values.
"""
