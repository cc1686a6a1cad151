"""Three responses of four tokens, as four policies see them: reference values of verl were computed on these.

The last two tokens of the third response are padding. Of the rest, the first response was good and the second bad;
ratios lie within the clip range, on both sides of it, and far outside (token 1 of the third: a log-ratio of 24.6).
"""

import torch

NEW_BT = torch.tensor([[-1.0, -0.5, -2.0, -0.1], [-0.3, -1.5, -0.9, -3.0], [-1.2, -0.4, -0.7, -2.5]])
OLD_BT = torch.tensor([[-1.1, -1.0, -1.5, -0.1], [-0.4, -1.0, -2.5, -1.0], [-1.2, -25.0, -0.7, -2.5]])
BEHAVIOUR_BT = torch.tensor([[-1.0, -1.0, -3.5, -0.2], [-0.5, -1.0, -2.0, -4.0], [-1.2, -24.0, -0.9, -2.5]])
ADVANTAGES_BT = torch.tensor([[0.8] * 4, [-1.2] * 4, [0.5] * 4])
MASK_BT = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
