"""One a node: GPU inventory and health, heartbeats, and what training jobs say of themselves."""
