"""Makes the calls of one account: queue, attempts, deadlines, retries, hedges and outages."""
