"""What travels, and where: messages, tokens, calls, the delay ladder, topology, rights. Pure."""
