"""Runs rewardflow inside verl: a reward manager, a trainer mode, a policy loss, and a launcher that switches them on.

Always true: nothing of verl is copied or patched; `plugin` registers each part in verl's own registry, when verl
imports that registry; the launcher refuses settings that nothing reads before anything starts.
"""
