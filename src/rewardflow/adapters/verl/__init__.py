"""Runs rewardflow inside verl: a reward manager, a trainer mode, a policy loss, and a launcher that switches them on.

Always true: nothing of verl is copied or patched; each part registers itself in verl's own registry, when verl imports
that registry; `contact` lists every private name of verl that is used; before anything starts the launcher translates,
refuses or reports every setting that nothing would read.
"""
