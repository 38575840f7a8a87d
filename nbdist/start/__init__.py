"""How workers come to be. Each start method gives `Worker`s: start, signal, reap."""
