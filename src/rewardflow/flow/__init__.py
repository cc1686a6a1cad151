"""The flow: one loop that overlaps generation, reward calls and training under any schedule."""
