"""The trainer on torch: a plain module on one rank, FSDP2 on several."""
