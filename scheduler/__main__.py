"""`python -m scheduler`: the command line."""

from scheduler.cli.commands import main

main()
