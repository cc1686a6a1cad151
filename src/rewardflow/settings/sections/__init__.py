"""The sections of a run's settings. Each module holds records that belong together."""
