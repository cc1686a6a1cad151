"""What a run writes about itself: settings, metrics, rollouts, validations, warnings."""
