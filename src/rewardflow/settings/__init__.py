"""Settings: strict YAML, typed values, rules and overrides; and `RunSettings`, every setting of a training run."""
