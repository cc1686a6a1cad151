"""A run's settings: one typed tree, read from YAML and from `key=value` on the command line."""
