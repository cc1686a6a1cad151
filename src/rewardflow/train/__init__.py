"""The trainers: what turns micro-batches into gradients, and gradients into new weights."""
