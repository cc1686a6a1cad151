"""Builds the model that learns values: a separate trunk with a head, or a head on the policy's trunk.

Always true: a head starts at 0, so every value starts at 0 and the global random state stays unchanged; all of its
weights train, so they are float32, also where those of a policy with adapters are not; a separate trunk shares no
weights with the policy.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rewardflow.errors import InvalidInput
from rewardflow.policy.load_policy import Policy, load_policy, outline_policy
from rewardflow.policy.outline import set_weight_dtype
from rewardflow.settings.run_settings import CriticSettings, PolicySettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ValueModel(nn.Module):
    """A value head and its trunk; `trunk` is None if the head sits on the policy's.

    Call the parts, never the whole module: both may be sharded.
    """

    def __init__(self, hidden_size: int, trunk: nn.Module | None, device: torch.device) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(hidden_size, 1, dtype=torch.float32, device="meta")
        self.start_head(device)

    def start_head(self, device: torch.device) -> None:
        """Makes room for the head on the device, and sets it to 0."""
        self.head.to_empty(device=device)
        for weight in self.head.parameters():
            nn.init.zeros_(weight)

    def of_hidden(self, hidden_ND: Tensor) -> Tensor:
        """Returns the values of tokens from the trunk's hidden states before them."""
        values_N1: Tensor = self.head(hidden_ND.float())
        return values_N1.squeeze(-1)


def build_value_model(policy: Policy, critic: CriticSettings, settings: PolicySettings, *, seed: int) -> ValueModel:
    """Builds it where the policy is: on its device, or on the meta device. `settings` are the policy's."""
    device = policy.model.device
    if critic.form == "head":
        return ValueModel(_hidden_size(policy.model), None, device)
    own = policy.model if critic.model is None else _other(policy, critic.model, settings, seed)
    trunk = own.base_model
    if trunk is own:
        raise InvalidInput(
            "a value model is the base of a model with a head, which transformers does not name in "
            f"{type(own).__name__}; choose critic.form=head"
        )
    trunk = copy.deepcopy(trunk) if own is policy.model else trunk
    set_weight_dtype(trunk, torch.float32)
    if device.type != "meta":  # where the buffers of an outline would lose their values
        trunk = trunk.to(device)
    return ValueModel(_hidden_size(own), trunk, device)


def _other(policy: Policy, name: str, settings: PolicySettings, seed: int) -> PreTrainedModel:
    """Loads another model. Checks it with the policy's tokenizer, because it reads the policy's tokens."""
    own = critic_policy_settings(name, settings)
    try:
        loaded = outline_policy(own) if policy.model.device.type == "meta" else load_policy(own, seed=seed)
    except InvalidInput as error:
        raise InvalidInput(f"critic.model={name} is loaded as policy.model is, but {error}") from error
    if loaded.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise InvalidInput(f"critic.model must have the policy's vocabulary, got {name} for {settings.model}")
    return loaded.model


def critic_policy_settings(name: str, settings: PolicySettings) -> PolicySettings:
    """Returns the settings by which another model is loaded for a critic: as the policy, with its tokenizer."""
    tokenizer = settings.tokenizer or (None if settings.model == "tiny" else settings.model)
    return replace(settings, model=name, gguf_file=None, tokenizer=tokenizer, chat_template=None)


def _hidden_size(model: PreTrainedModel) -> int:
    size: int = model.config.get_text_config().hidden_size
    return size
