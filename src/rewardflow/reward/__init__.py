"""The reward agent and its parts, in the order a call meets them."""
