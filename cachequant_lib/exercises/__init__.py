"""Checkers for the exercises: each says what is wrong with an answer, or that it is right."""
