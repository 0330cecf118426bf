"""The command `tiresias`: what people type, see and get back as exit codes."""
