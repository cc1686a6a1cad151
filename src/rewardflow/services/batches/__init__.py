"""Half-price batches: gathers the requests of a judge, sends them as one batch, and waits for its end."""
