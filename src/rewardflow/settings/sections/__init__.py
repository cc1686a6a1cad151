"""The sections of a run's settings: a module for each group of records that belong together."""
