"""rewardflow inside trainers that others wrote: each adapter wraps what its trainer offers, and copies none of it."""
