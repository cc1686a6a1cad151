"""Whether the policy learns: under every schedule, and with every algorithm."""
