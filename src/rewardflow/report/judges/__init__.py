"""Pages and sections about judges: a test on labelled answers, a run under another judge, an audit."""
