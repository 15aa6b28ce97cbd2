"""Provide the command line: `commands` lists the commands, one module a noun."""
