"""Where a gang goes: consolidated or spread over the nodes, and which GPUs inside a node."""
