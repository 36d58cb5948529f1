"""The room of what is in RAM of a store: small columns, episodes and their facts, later values, trees of priorities."""
