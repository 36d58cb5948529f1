"""From ids to arrays: this room plans, reads and puts together a batch that was drawn.

It draws nothing, and knows no view's shape.

- A plan is made with ``engine.lock`` held, and read without it.
- The files that a plan needs stay open, because it holds them, until it is read.
- A returned array belongs to the caller: nothing writes to it while the caller holds it.
- Compiled code and Python fill in the same values.
"""
