"""What travels, and where: messages, tokens, calls, the hatchery, topology, rights. Pure."""
