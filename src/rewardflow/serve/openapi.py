"""The OpenAPI description of the server.

Always true: it describes every route, and every answer that a route gives has a status and a shape named here.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rewardflow.serve.own_protocol import MAX_ROLLOUTS, MAX_WAIT_S
from rewardflow.shared_agent.messages import MAX_GROUP_SIZE
from rewardflow.types import FAILURE_KINDS, Rollout

_MAX_INT: Final = 2**63 - 1
_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "object", "required": ["message", "type"], "properties": {"message": _TEXT, "type": _TEXT}}
    },
}
_ROLLOUT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["group_id", "response"],
    "additionalProperties": False,
    "properties": {
        "group_id": _TEXT,
        "response": _TEXT,
        "index": {"type": "integer", "minimum": 0, "description": "less than group_size"},
        "group_size": {"type": "integer", "minimum": 1, "maximum": MAX_GROUP_SIZE},
        "prompt": _TEXT,
        "messages": {"type": "array", "items": {"type": "object"}},
        "ground_truth": {"description": "any value that the reward understands"},
        "data_source": _TEXT,
        "extra_info": {"type": "object"},
        "step": {"type": "integer", "minimum": -_MAX_INT, "maximum": _MAX_INT},
        "position": {"type": "integer"},
        "policy_version": {"type": ["integer", "null"]},
        "token_ids": {"type": ["array", "null"], "items": {"type": "integer"}},
        "log_probs": {"type": ["array", "null"], "items": {"type": "number"}},
        "response_mask": {"type": ["array", "null"], "items": {"type": "integer"}},
        "token_versions": {"type": ["array", "null"], "items": {"type": "integer"}},
    },
}
_PLACE: Final = {
    "type": "object",
    "required": ["step", "group_id", "index"],
    "properties": {"step": {"type": "integer"}, "group_id": _TEXT, "index": {"type": "integer"}},
}
_VERDICT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["step", "group_id", "index", "status", "value", "kind"],
    "properties": {
        **_PLACE["properties"],  # type: ignore[dict-item]
        "status": {"enum": ["scored", "failed"]},
        "value": {"type": ["number", "null"], "description": "null if the rollout was not judged, never 0 instead"},
        "kind": {"enum": [*FAILURE_KINDS, None]},
        "error": _TEXT_OR_NULL,
        "imputed": {"type": "boolean"},
        "components": {"type": "object"},
        "extras": {"type": "object"},
        "query": _TEXT_OR_NULL,
        "explanation": _TEXT_OR_NULL,
        "attempts": {"type": "integer"},
        "latency_s": {"type": "number"},
        "cost_usd": {"type": "number"},
        "tokens": {"type": "integer"},
        "cached": {"type": "boolean"},
        "traceback": _TEXT_OR_NULL,
    },
}
_SECRET: Final = {"type": "string", "minLength": 32, "description": "known to this client alone"}
_NUMBERED: Final = {
    "type": "object",
    "required": ["secret", "confirmed"],
    "additionalProperties": False,
    "properties": {"secret": _SECRET, "confirmed": {"type": "integer"}},
}
_ANY: Final[dict[str, Any]] = {}
_OBJECT: Final = {"type": "object"}
_RUN: Final = {"in": "query", "name": "run", "schema": {"type": "string", "minLength": 1, "maxLength": 200}}
_STEP: Final = {"in": "header", "name": "X-Rewardflow-Step", "schema": {"type": "integer"}}
_REFUSALS: Final = (400, 401, 403, 413, 429, 503)
_FAILURES: Final = (402, 500, 502, 503, 504)


def describe() -> dict[str, Any]:
    assert set(_ROLLOUT["properties"]) == {field.name for field in dataclasses.fields(Rollout)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rewardflow serve",
            "version": "1",
            "description": "Verdicts of a reward for any trainer. Asking again is safe, and pays nothing.",
        },
        "paths": {**_own_paths(), **_client_paths(), **_trainer_paths(), **_status_paths()},
        "components": {
            "schemas": {"Rollout": _ROLLOUT, "Verdict": _VERDICT, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _own_paths() -> dict[str, Any]:
    asked = {
        "type": "object",
        "required": ["rollouts"],
        "additionalProperties": False,
        "properties": {
            "run": {"type": ["string", "null"], "minLength": 1, "maxLength": 200},
            "rollouts": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/Rollout"},
                "minItems": 1,
                "maxItems": MAX_ROLLOUTS,
            },
            "wait_s": {"type": "number", "description": f"at most {MAX_WAIT_S:g} seconds count"},
            "due_step": {"type": ["integer", "null"], "minimum": -_MAX_INT, "maximum": _MAX_INT},
        },
    }
    answered = {
        "type": "object",
        "required": ["verdicts", "pending"],
        "properties": {
            "verdicts": {"type": "array", "items": {"$ref": "#/components/schemas/Verdict"}},
            "pending": {"type": "array", "items": _PLACE},
        },
    }
    return {"/v1/score": {"post": _operation("Judge rollouts; the same request again gets the rest.", asked, answered)}}


def _client_paths() -> dict[str, Any]:
    hello = {
        "type": "object",
        "required": ["secret", "run"],
        "additionalProperties": False,
        "properties": {
            "secret": _SECRET,
            "run": {"type": "string", "minLength": 1, "maxLength": 200},
            "share": {"type": "number", "minimum": 0.1, "maximum": 10},
            "records": {"type": "boolean"},
        },
    }
    post = {
        "type": "object",
        "required": ["secret", "ops"],
        "additionalProperties": False,
        "properties": {"secret": _SECRET, "ops": {"type": "array", "items": _OBJECT}},
    }
    gone = (*_REFUSALS, 410)
    return {
        "/v1/hello": {"post": _operation("Register a client (see rewardflow.serve.connect).", hello, _OBJECT)},
        "/v1/post": {"post": _operation("A client's requests.", post, {"type": "null"}, refusals=gone)},
        "/v1/take": {"post": _operation("Wait for a client's verdicts.", _NUMBERED, _OBJECT, refusals=gone)},
        "/v1/bye": {"post": _operation("A client leaves.", _NUMBERED, _OBJECT, refusals=gone)},
    }


def _trainer_paths() -> dict[str, Any]:
    texts = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
    openrlhf = {"type": "object", "required": ["query"], "properties": {"query": texts}}
    prompt = {"oneOf": [_TEXT_OR_NULL, {"type": "array", "items": _OBJECT}]}
    slime = {"type": "object", "required": ["response"], "properties": {"response": _TEXT, "prompt": prompt}}
    verify = {
        "type": "object",
        "required": ["responses_create_params", "response"],
        "properties": {"responses_create_params": _OBJECT, "response": _OBJECT},
    }
    rows = {
        "type": "object",
        "required": ["verify_responses"],
        "properties": {"verify_responses": {"type": "array", "items": _OBJECT}},
    }
    chat = {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {
            "model": _TEXT,
            "messages": {"type": "array", "items": _OBJECT, "minItems": 1},
            "stream": {"enum": [False]},
        },
    }
    failing = (*_REFUSALS, *_FAILURES)
    one = {
        "post": _operation("slime's and miles' remote reward.", slime, {"type": ["number", "object"]}, refusals=failing)
    }
    proxied = (*failing, 404, 409, 415, 422)
    return {
        "/openrlhf": {"post": _operation("OpenRLHF's remote reward.", openrlhf, _OBJECT, refusals=failing)},
        "/slime": one,
        "/miles": one,
        "/verify": {"post": _operation("NeMo Gym's verification.", verify, _OBJECT, refusals=failing)},
        "/seed_session": {"post": _operation("NeMo Gym begins a rollout.", _OBJECT, _OBJECT)},
        "/aggregate_metrics": {"post": _operation("NeMo Gym's closing figures.", rows, _OBJECT)},
        "/reverify_mode": {"get": _operation("NeMo Gym may verify again.", None, _TEXT)},
        "/v1/chat/completions": {"post": _operation("A governed chat completion.", chat, _OBJECT, refusals=proxied)},
    }


def _status_paths() -> dict[str, Any]:
    return {
        "/v1/status": {"get": _operation("What the agent does, and what waits.", None, _OBJECT)},
        "/v1/spending": {"get": _operation("What the job has spent and may spend.", None, _OBJECT)},
        "/v1/statistics": {"get": _operation("All figures of the agent.", None, _OBJECT)},
        "/healthz": {"get": _operation("Whether the server answers.", None, _OBJECT)},
        "/openapi.json": {"get": _operation("This description.", None, _OBJECT)},
        "/metrics": {"get": _operation("Figures for Prometheus.", None, None)},
    }


def _operation(
    summary: str,
    asked: dict[str, Any] | None,
    answered: dict[str, Any] | None,
    *,
    refusals: tuple[int, ...] = _REFUSALS,
) -> dict[str, Any]:
    kind = "text/plain" if answered is None else "application/json"
    schema = _TEXT if answered is None else answered
    answers: dict[str, Any] = {"200": {"description": "The answer.", "content": {kind: {"schema": schema}}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in sorted({*refusals, 503}):
        answers[str(status)] = {"description": _MEANINGS.get(status, "The request failed."), "content": error}
    operation: dict[str, Any] = {"summary": summary, "responses": answers, "security": [{}, {"token": []}]}
    operation["parameters"] = [_RUN, _STEP] if asked is not None else [_RUN]
    if asked is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": asked}}}
    return operation


_MEANINGS: Final = {
    400: "The request breaks a rule, which the message names.",
    401: "The token is missing or unknown.",
    402: "The cap of the job or of the server is reached.",
    403: "The token's job may not do this.",
    404: "There is no such thing.",
    410: "The client must say hello first.",
    413: "The body is too large.",
    429: "The job has too many rollouts waiting; Retry-After says when to ask again.",
    500: "The reward's own code failed.",
    502: "The service failed, or its answer held no score.",
    503: "The server is closing, or the service is down.",
    504: "The service did not answer in time.",
}
