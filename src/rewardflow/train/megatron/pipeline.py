"""Makes passes through a model whose layers are on several ranks, by Megatron's schedule.

Always true: all ranks of a replica make the same passes over the same rows; the last stage has the results, for sampled
tokens alone, and never their logits; gradients stay where they accumulate, for the update to reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from rewardflow.algo.head_softmax import KEPT_LOGITS
from rewardflow.algo.token_softmax import Entropy
from rewardflow.train.megatron.building import ModelPart
from rewardflow.train.megatron.context import known_to_all, padded_length, places_of, positions_of
from rewardflow.train.megatron.vocabulary import own_words, scores_of, scoring_head
from rewardflow.train.packing import PackedRows
from rewardflow.train.token_log_probs import TokenScores, computing

# Given the number of a pass and what it found: what to differentiate, if anything is.
UseScores = Callable[[int, TokenScores], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Makes passes. `module` is the module to call: the part itself, or the wrapper that counts its gradients."""

    part: ModelPart
    module: nn.Module
    temperature: float
    kept_logits: int = KEPT_LOGITS  # at most so many exist at a time

    def run(
        self, passes: Sequence[PackedRows], use: UseScores, *, entropy: Entropy = "none", backward: bool = False
    ) -> None:
        """Makes all passes; calls `use` on the ranks of the last stage."""
        if not passes:
            return
        numbered = iter(enumerate(passes))

        def forward_step(batches: Iterator[tuple[int, PackedRows]], module: nn.Module) -> tuple[Tensor, Any]:
            number, packed = next(batches)
            places = self._places(packed)
            output = self._forward(module, packed, places, entropy)

            def loss(returned_SN: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
                value = use(number, self._known_to_all(scores_of(returned_SN, entropy), packed, places))
                return value, torch.zeros((), dtype=torch.int, device=value.device), {}

            return output, loss

        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=numbered,
            model=[self.module],
            num_microbatches=len(passes),
            seq_length=max(packed.input_ids_BL.shape[1] for packed in passes),  # shapes travel with what they are of
            micro_batch_size=max(packed.input_ids_BL.shape[0] for packed in passes),
            forward_only=not backward,
        )

    def _forward(self, module: nn.Module, packed: PackedRows, places: _Places, entropy: Entropy) -> Tensor:
        """Returns scores from the last stage, and from others what the next one computes with."""
        part = self.part
        with ExitStack() as stack:
            if part.layout.pipeline.is_last:
                gpt: Any = part.gpt
                score = scoring_head(
                    gpt.output_layer,
                    partial(self._sampled, packed, places),
                    packed.token_ids_N[places.index_N],
                    own_words(part.shape.vocabulary, part.layout.tensor),
                    temperature=self.temperature,
                    entropy=entropy,
                    kept_logits=self.kept_logits,
                )
                stack.enter_context(computing(gpt.output_layer, score))
            output: Tensor = module(self._own_tokens(packed), None, None)
        return output

    def _sampled(self, packed: PackedRows, places: _Places, hidden_SBD: Tensor) -> Tensor:
        """Returns the hidden states of the sampled tokens that this rank predicts."""
        if self.part.config.sequence_parallel:
            hidden_SBD = tensor_parallel.gather_from_sequence_parallel_region(
                hidden_SBD, tensor_parallel_output_grad=False
            )
        return hidden_SBD[places.place_N, packed.row_N[places.index_N]]

    def _own_tokens(self, packed: PackedRows) -> Tensor:
        """The tokens that this rank has, of all but the last of the longest row, from which nothing is predicted."""
        axis = self.part.layout.context
        ids_BL = packed.input_ids_BL[:, :-1]
        whole_BL = F.pad(ids_BL, (0, self._length(packed) - ids_BL.shape[1]))
        if axis.size == 1:
            return whole_BL
        return whole_BL[:, positions_of(whole_BL.shape[1], axis.rank, axis.size, whole_BL.device)]

    def _length(self, packed: PackedRows) -> int:
        """Padded on the right as the ranks need it."""
        return padded_length(packed.input_ids_BL.shape[1] - 1, self.part.length_multiple)

    def _places(self, packed: PackedRows) -> _Places:
        """Each token is predicted at the position before its own."""
        is_own_N, place_N = places_of(packed.position_N - 1, self._length(packed), self.part.layout.context)
        index_N = is_own_N.nonzero().squeeze(-1)
        return _Places(index_N, place_N[index_N])

    def _known_to_all(self, own: TokenScores, packed: PackedRows, places: _Places) -> TokenScores:
        """Joins the scores of the ranks that each predict some of the tokens."""
        axis = self.part.layout.context
        if axis.size == 1:
            return own

        def spread(found: Tensor) -> Tensor:
            room = torch.zeros(packed.token_ids_N.shape, dtype=found.dtype, device=found.device)
            return known_to_all(room.index_put((places.index_N,), found), axis)

        return TokenScores(spread(own.log_probs_N), None if own.entropy_N is None else spread(own.entropy_N))


@dataclass(frozen=True, slots=True)
class _Places:
    """Which sampled tokens this rank predicts, and at which of its positions."""

    index_N: Tensor
    place_N: Tensor
