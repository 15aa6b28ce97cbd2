"""The command line: `commands` lists what can be typed, a module for each noun does it."""
