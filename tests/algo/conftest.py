"""The tensors of these tests are tiny, so threads would only cost."""

import torch

torch.set_num_threads(1)
