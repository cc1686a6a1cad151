"""rewardflow inside verl: a reward manager, a trainer mode, a policy loss, and a launcher that switches them on.

Always true: nothing of verl is copied or patched; what verl calls is registered in its own registries, when verl
imports them (`plugin`); a setting that nobody would honour is refused before anything starts.
"""
