"""Define messages and their paths: tokens, calls, the hatchery, topology, rights. No I/O."""
