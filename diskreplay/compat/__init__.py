"""Other libraries' buffers, by their own names, over this package's engine; each module is imported by itself."""
