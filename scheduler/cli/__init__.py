"""Provide the command line: `commands` lists the commands, a module for each noun implements them."""
