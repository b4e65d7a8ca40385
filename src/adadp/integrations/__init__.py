"""Private training inside other libraries' training loops, one module for each; each needs its library installed."""
