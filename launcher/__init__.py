"""The launcher: prepares, starts, watches and stops the tasks of runs on one node."""
