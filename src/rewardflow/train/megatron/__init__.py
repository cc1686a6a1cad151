"""The trainer on megatron-core: one model over tensor, pipeline, context and data ranks."""
