"""Random campaigns: requests of every mechanism, and command lines.

What they draw is fixed by a seed, so that a failure can be run again; the noise of a
release never is.
"""
