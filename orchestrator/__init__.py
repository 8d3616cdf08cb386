"""The control side: runs on a laptop, imports no torch, keeps no state that a file does not show."""

__version__ = "0.1.0"
