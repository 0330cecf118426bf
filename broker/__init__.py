"""The words and the wire: message structs, subjects, codec, and the bus.

Re-exports nothing on purpose: importing a schema must not load the bus into a pure core.
"""
