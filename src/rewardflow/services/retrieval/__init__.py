"""A judge that shows passages from a collection of texts beside the answer."""
