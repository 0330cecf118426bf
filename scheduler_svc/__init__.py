"""The scheduler service: a pure core, and the asyncio shell that leads with it."""
