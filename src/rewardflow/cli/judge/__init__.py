"""The command `rewardflow judge`."""
