"""The agent's rules, pure: which GPUs are offered, which are healthy, what a job's line means."""
