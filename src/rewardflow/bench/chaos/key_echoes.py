"""Misbehaviours of a server that repeats the client's key: in bodies, headers, errors, and in several spellings.

Always true: every answer here holds the key that the client sent, whole or in a spelling from which it can be read.
"""

from __future__ import annotations

from rewardflow.bench.chaos.exchange import Carries, Exchange, Misbehaviour


async def key_in_reason(x: Exchange) -> None:
    await x.reply_text(x.verdict().replace("seen", f"seen {x.key}"))


async def key_in_bearer_header_in_reason(x: Exchange) -> None:
    await x.reply_text(x.verdict().replace("seen", f"Authorization: Bearer {x.key} seen"))


async def key_before_verdict(x: Exchange) -> None:
    await x.reply_text(f"You are {x.key}.\n{x.verdict()}")


async def key_in_broken_verdict(x: Exchange) -> None:
    await x.reply_text(f"You are {x.key} and this is no verdict.")


async def key_in_refusal(x: Exchange) -> None:
    body = {"error": {"message": f"the key {x.key} may not use this model", "param": {"Authorization": x.key}}}
    await x.reply(body, f"x-your-key: {x.key}", status="403 Forbidden")


async def key_in_server_error(x: Exchange) -> None:
    await x.reply(f"Traceback: KeyError({x.key!r})".encode(), status="500 Internal Server Error")


async def key_in_redirect(x: Exchange) -> None:
    await x.reply({}, f"Location: https://example.invalid/?key={x.key}", status="302 Found")


async def key_in_error_as_success(x: Exchange) -> None:
    await x.reply({"error": {"message": f"bad key: {x.key}", "code": 400}})


async def key_in_finish_reason(x: Exchange) -> None:
    whole = x.completion("")
    whole["choices"][0]["finish_reason"] = x.key
    await x.reply(whole)


async def key_in_model_refusal(x: Exchange) -> None:
    whole = x.completion("")
    whole["choices"][0]["message"]["refusal"] = f"I will not judge for {x.key}"
    await x.reply(whole)


async def key_in_text_that_is_not_json(x: Exchange) -> None:
    await x.reply(b"key=" + x.key.encode())


async def key_escaped_as_json(x: Exchange) -> None:
    """Spells each character of the key as an escape, which a JSON reader turns back into the key."""
    spelt = "".join(f"\\u{ord(letter):04x}" for letter in x.key)
    await x.reply_text(x.verdict().replace("seen", spelt))


_PERHAPS = (key_in_reason, key_in_bearer_header_in_reason, key_before_verdict, key_escaped_as_json)
_NOTHING = (
    key_in_broken_verdict,
    key_in_refusal,
    key_in_server_error,
    key_in_redirect,
    key_in_error_as_success,
    key_in_finish_reason,
    key_in_model_refusal,
    key_in_text_that_is_not_json,
)

KEY_ECHOES = (
    *(Misbehaviour(answer.__name__, Carries.PERHAPS, answer) for answer in _PERHAPS),
    *(Misbehaviour(answer.__name__, Carries.NOTHING, answer) for answer in _NOTHING),
)
