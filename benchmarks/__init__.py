"""Measurements; one file a question. Every figure in the docs was printed here."""
