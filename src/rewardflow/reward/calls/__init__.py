"""Making the calls of one account: the queue, attempts, deadlines, retries, hedges and outages."""
