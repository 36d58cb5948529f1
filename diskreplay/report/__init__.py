"""A store as a page in a browser: facts in, one self-contained document out, as a file or from a local server."""
