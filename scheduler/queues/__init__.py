"""One module for each kind of queue or stream: what is put there, and read."""
