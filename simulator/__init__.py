"""Trace-driven simulation on the scheduler's own core, in virtual time."""
