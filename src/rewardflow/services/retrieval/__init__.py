"""The retrieval judge: it shows the model passages from a collection of texts beside the answer."""
