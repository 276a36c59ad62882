"""Compute: raw arrays in, raw arrays out. Nothing here validates, and nothing of the library is imported."""
