"""The pure scheduler: 2DAS priorities, passes, placement, life of a run. No I/O, no clock."""
