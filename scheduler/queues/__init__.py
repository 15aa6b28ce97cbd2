"""Read and write each kind of queue or stream, one module each."""
