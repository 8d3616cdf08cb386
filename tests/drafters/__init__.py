"""Drafters that were trained wrong on purpose, sound ones beside them, and the script that trained them."""
