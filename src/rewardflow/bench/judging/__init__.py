"""Benchmarks of judging: what asking only where it matters saves, how an audit speaks, what a server can reuse."""
