"""The room of stores under a URL: objects, a mirror to read them from, and pushes."""
