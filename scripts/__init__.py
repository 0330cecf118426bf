"""Tools of the project itself: run from its root with ``python -m scripts.NAME``."""
