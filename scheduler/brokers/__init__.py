"""What a broker is, and the two that there are."""
