"""Signals, threads, forks and the end of a process."""
