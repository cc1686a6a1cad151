"""Writes and reads steps that were generated and not trained: texts as lines of JSON, numbers as tensors.

    rollouts.jsonl         a line for each request, then one for each rollout
    rollouts.safetensors   token ids, masks, log-probs and versions of all rollouts, one after another

Always true: a step is read back as it was, every number bit for bit, so its verdicts are found in the journal; no file
is ever executed. Prompts are not written: they come from the data, whose fingerprint must be the same, so that a reward
gets the same objects as before.

JSON is the standard library's, because NaN, half surrogate pairs and large integers must come back as they were.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.flow.records import GroupRequest, Precomputed, PreparedRollout, Prompt, SavedStep
from rewardflow.observe.private_file import replacing, write_private
from rewardflow.reward.journal.canonical import canonical
from rewardflow.types import Rollout

LINES_FILE = "rollouts.jsonl"
TENSORS_FILE = "rollouts.safetensors"

_SEQUENCES = ("token_ids", "response_mask", "log_probs", "token_versions")
_TAKEN = ("old", "values", "reference", "behaviour")
_FROM_PROMPT = {"prompt": "text", "messages": "messages", "ground_truth": "ground_truth", "data_source": "data_source"}
_PLAIN = ("group_id", "index", "group_size", "step", "response", "policy_version")
_DTYPES = {
    "b": torch.int8,
    "B": torch.uint8,
    "h": torch.int16,
    "i": torch.int32,
    "l": torch.int64,
    "q": torch.int64,
    "f": torch.float32,
    "d": torch.float64,
}


# -- writing ---------------------------------------------------------------------------------------------------------


def write_rollouts(steps: Sequence[SavedStep], folder: Path) -> None:
    numbers = _NumberWriter()
    with replacing(folder / LINES_FILE) as lines:
        for step in steps:
            prompts = {request.group_id: request.prompt for request in step.requests}
            for request in step.requests:
                lines.write(_line({"kind": "request", **_request_to_json(request)}).encode())
            for one in step.rollouts:
                record = _rollout_to_json(one.rollout, prompts[one.rollout.group_id])
                lines.write(_line({"kind": "rollout", **record, "numbers": numbers.add(one)}).encode())
    write_private(folder / TENSORS_FILE, safetensors.torch.save(numbers.tensors()))


def _request_to_json(request: GroupRequest) -> dict[str, Any]:
    return {
        "number": request.number,
        "step": request.step,
        "uid": request.prompt.uid,
        "group_size": request.group_size,
        "has_baseline": request.has_baseline,
        "prefix": request.prefix,
    }


def _rollout_to_json(rollout: Rollout, prompt: Prompt) -> dict[str, Any]:
    """Returns the fields that the prompt does not give."""
    record: dict[str, Any] = {name: getattr(rollout, name) for name in (*_PLAIN, "position")}
    for name, source in _FROM_PROMPT.items():
        if not _are_same(getattr(rollout, name), getattr(prompt, source)):
            record[name] = getattr(rollout, name)
    info, known = rollout.extra_info, prompt.extra_info
    record["added_info"] = {
        name: value for name, value in info.items() if name not in known or not _are_same(value, known[name])
    }
    record["removed_info"] = [name for name in known if name not in info]
    return record


def _are_same(one: Any, other: Any) -> bool:
    return one is other or canonical(one) == canonical(other)


def _line(record: Mapping[str, Any]) -> str:
    try:
        return json.dumps(record, ensure_ascii=True, separators=(",", ":")) + "\n"
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "what an engine adds to a rollout must be plain JSON to be in a checkpoint, "
            f"got {error} in group {record.get('group_id')!r}"
        ) from error


class _NumberWriter:
    """Concatenates the numbers of all rollouts, by field and type."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, one: PreparedRollout) -> dict[str, Any]:
        """Returns, by field, the name of the tensor and the number of entries; leaves out a field that is None."""
        found = {}
        for name in _SEQUENCES:
            values = getattr(one.rollout, name)
            if values is not None:
                found[name] = self._put(name, *_tensor_of(values))
        for name in _TAKEN:
            values = getattr(one.precomputed, name)
            if values is not None:
                found[name] = self._put(name, "f", _checked(name, values))
        return found

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def _put(self, name: str, code: str, values: Tensor) -> list[Any]:
        key = f"{name}.{code}"
        self._parts[key].append(values)
        return [key, len(values)]


def _tensor_of(values: Sequence[Any]) -> tuple[str, Tensor]:
    """Keeps the type of an array; any other sequence holds Python's integers or floats."""
    if not isinstance(values, array):
        values = array("q" if all(isinstance(value, int) for value in values) else "d", values)
    if not values:
        return values.typecode, torch.empty(0, dtype=_DTYPES[values.typecode])
    return values.typecode, torch.frombuffer(bytearray(values.tobytes()), dtype=_DTYPES[values.typecode])


def _checked(name: str, values: Any) -> Tensor:
    if not isinstance(values, Tensor) or values.dtype != torch.float32 or values.ndim != 1:
        raise InvalidInput(f"{name} log-probs must be a float32 tensor of one dimension, got {values!r:.80}")
    return values.detach().cpu()


# -- reading ---------------------------------------------------------------------------------------------------------


def read_rollouts(folder: Path, prompt_of: Callable[[str], Prompt]) -> tuple[SavedStep, ...]:
    """Reads the steps back. `prompt_of` gives the prompt of a uid."""
    requests: defaultdict[int, list[GroupRequest]] = defaultdict(list)
    rollouts: defaultdict[int, list[PreparedRollout]] = defaultdict(list)
    prompts: dict[str, Prompt] = {}
    try:
        numbers = _NumberReader(safetensors.torch.load((folder / TENSORS_FILE).read_bytes()))
        for record in _records(folder / LINES_FILE):
            step = record["step"]
            if record.pop("kind") == "request":
                request = _request_from_json(record, prompt_of)
                prompts[request.group_id] = request.prompt
                requests[step].append(request)
            else:
                taken = numbers.take(record.pop("numbers"))
                rollouts[step].append(_rollout_from_json(record, prompts[record["group_id"]], taken))
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the rollouts in {folder} cannot be read: {error!r}") from error
    return tuple(
        SavedStep(step=step, requests=tuple(requests[step]), rollouts=tuple(rollouts[step]))
        for step in sorted(requests)
    )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _request_from_json(record: Mapping[str, Any], prompt_of: Callable[[str], Prompt]) -> GroupRequest:
    """Leaves out how the request was sampled: its rollouts exist, so no engine samples them again."""
    return GroupRequest(
        number=record["number"],
        step=record["step"],
        prompt=prompt_of(record["uid"]),
        group_size=record["group_size"],
        has_baseline=record.get("has_baseline", False),
        prefix=record.get("prefix", ""),  # which was not written before there were validations
    )


def _rollout_from_json(record: Mapping[str, Any], prompt: Prompt, taken: Mapping[str, Any]) -> PreparedRollout:
    fields: dict[str, Any] = {name: record[name] for name in _PLAIN}
    fields["position"] = record.get("position", 0)  # which was not written while the agent took groups as they came
    fields |= {name: record.get(name, getattr(prompt, source)) for name, source in _FROM_PROMPT.items()}
    info = prompt.extra_info
    if record["added_info"] or record["removed_info"]:
        kept = {name: value for name, value in info.items() if name not in record["removed_info"]}
        info = {**kept, **record["added_info"]}
    fields |= {name: taken.get(name) for name in _SEQUENCES}
    rollout = Rollout(**fields, extra_info=info)
    return PreparedRollout(rollout=rollout, precomputed=Precomputed(**{name: taken.get(name) for name in _TAKEN}))


class _NumberReader:
    """Gives each rollout its numbers, in the order in which they were added."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._positions: defaultdict[str, int] = defaultdict(int)

    def take(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._take(name, *place) for name, place in fields.items()}

    def _take(self, name: str, key: str, count: int) -> Any:
        start = self._positions[key]
        self._positions[key] = start + count
        values = self._tensors[key][start : start + count]
        if len(values) != count:
            raise ValueError(f"{key} has fewer entries than its lines say")
        return values.clone() if name in _TAKEN else _array_of(key.rpartition(".")[2], values)


def _array_of(code: str, values: Tensor) -> array[Any]:
    found: array[Any] = array(code)
    found.frombytes(values.numpy().tobytes())
    return found
