"""`python -P -m cli` is `tiresias`."""

from cli.main import main

main()
