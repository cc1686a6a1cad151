"""How new weights reach the generators."""
