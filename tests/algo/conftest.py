"""Uses one thread: the tensors of these tests are so small that more threads would only slow them down."""

import torch

torch.set_num_threads(1)
