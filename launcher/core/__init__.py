"""The launcher's pure rules: no clock, files, processes or sockets."""
