"""Computes what training optimises: advantages, policy losses, KL, entropy, aggregation. Pure functions on tensors.

Names end with their shapes: B rollouts, T tokens, V words of the vocabulary. A `mask_BT` marks the tokens that train:
those that the policy sampled, in scored rollouts (`aggregation.trained_mask`). Always true: values outside the mask,
even NaN, affect no value and no gradient.
"""
