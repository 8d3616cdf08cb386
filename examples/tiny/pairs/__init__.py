"""Trains small DFlash pairs on a CPU, and says by brute force what a pair must do.

A reference of its own: it shares no code with the evaluation harness, so that the two can be held against
each other. It favours what can be read over what is fast: no cache, no batching outside training.
"""
