"""Define a broker, and its two implementations."""
