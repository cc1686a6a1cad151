"""What is optimised: advantages, policy losses, KL, entropy and aggregation, as pure functions on tensors.

Shapes are in the names: B rollouts, T tokens, V words of the vocabulary. A `mask_BT` says which tokens train: sampled
by the policy, in a scored rollout (`aggregation.trained_mask`). Always true: what stands outside the mask, NaN
included, reaches no value and no gradient.
"""
