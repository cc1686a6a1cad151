"""Messages between a reward process and its parent arrive whole: exceptions, records and frames."""

from __future__ import annotations

import pickle
import sys
import threading
from types import MappingProxyType

import pytest

from rewardflow.errors import RateLimited
from rewardflow.reward.calls.faults import fault_of
from rewardflow.reward.code.process_messages import (
    HEADER,
    Failure,
    decode_answer,
    decode_reply,
    dumps,
    encode_answer,
    frame,
    pack_exception,
    type_name,
    unpack_exception,
)
from rewardflow.types import Rollout


class StatusError(Exception):
    """Pickles, but does not unpickle: its constructor needs more than `args`."""

    def __init__(self, message: str, *, response: dict[str, int]) -> None:
        super().__init__(message)
        self.response = response


def transfer(error: Exception) -> Exception:
    """Raises the error, so that it has a traceback, and sends it through bytes."""
    try:
        raise error
    except Exception as raised:
        failure = decode_answer(encode_answer(pack_exception(raised)))
        assert failure is not None
        return unpack_exception(failure)


def test_an_exception_arrives_as_itself_with_its_fields_and_where_it_was_raised() -> None:
    arrived = transfer(RateLimited("slow down", retry_after_s=7, headers={"retry-after": "7"}))
    assert isinstance(arrived, RateLimited)
    assert (str(arrived), arrived.retry_after_s, arrived.headers) == ("slow down", 7, {"retry-after": "7"})
    (note,) = arrived.__notes__
    assert note.startswith("In the reward process:")
    assert "raise error" in note


def test_an_exception_that_cannot_be_unpickled_keeps_its_class_and_attributes() -> None:
    arrived = transfer(StatusError("refused", response={"status": 503}))
    assert isinstance(arrived, StatusError)
    assert arrived.args == ("refused",)
    assert arrived.response == {"status": 503}


def test_an_exception_of_a_class_that_cannot_be_found_arrives_as_its_nearest_base_class() -> None:
    class Local(TimeoutError):
        pass

    arrived = transfer(Local("no answer"))
    assert type(arrived) is TimeoutError
    assert str(arrived) == "no answer"


def test_an_attribute_that_cannot_be_pickled_is_left_out() -> None:
    error = StatusError("refused", response={"status": 503})
    error.lock = threading.Lock()
    arrived = transfer(error)
    assert isinstance(arrived, StatusError)
    assert arrived.response == {"status": 503}
    assert not hasattr(arrived, "lock")


def test_an_exception_without_a_readable_base_class_arrives_as_text() -> None:
    class Local(Exception):
        pass

    arrived = transfer(Local("odd"))
    assert type(arrived) is RuntimeError
    assert str(arrived).endswith("Local: odd")


def test_records_with_read_only_mappings_can_be_sent() -> None:
    rollout = Rollout(group_id="q", response="4", extra_info=MappingProxyType({"split": "train"}))
    arrived = pickle.loads(dumps(rollout))
    assert arrived == rollout
    assert isinstance(arrived.extra_info, MappingProxyType)


def test_a_frame_is_the_length_the_number_and_the_body() -> None:
    data = frame(7, b"body")
    assert HEADER.unpack_from(data) == (4, 7)
    assert data[HEADER.size :] == b"body"


def test_builtin_types_are_named_without_their_module() -> None:
    assert type_name(1.0) == "float"
    assert type_name(Rollout(group_id="q", response="")) == "rewardflow.types.Rollout"


def test_the_status_and_headers_of_a_response_object_arrive() -> None:
    class Response:
        def __init__(self) -> None:
            self.status_code = 429
            self.headers = {"retry-after": "7"}
            self.lock = threading.Lock()

    arrived = transfer(StatusError("slow down", response=Response()))  # type: ignore[arg-type]
    fault = fault_of(arrived)
    assert (fault.kind, fault.retry_after_s) == ("rate_limited", 7.0)


def test_none_and_a_cause_in_an_attribute_arrive() -> None:
    error = RateLimited("slow down", retry_after_s=None)
    error.reason = TimeoutError("no answer")
    arrived = transfer(error)
    assert isinstance(arrived, RateLimited)
    assert arrived.retry_after_s is None
    assert isinstance(arrived.reason, TimeoutError)


def test_a_class_that_is_not_loaded_here_is_not_imported_but_keeps_its_name() -> None:
    failure = Failure((("antigravity", "APIConnectionError"), ("builtins", "OSError")), ("gone",), {}, "", "")
    error = unpack_exception(failure)
    assert (type(error).__name__, isinstance(error, OSError), str(error)) == ("APIConnectionError", True, "gone")
    assert "antigravity" not in sys.modules
    assert fault_of(error).kind == "service"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\x80\x05N.",
        b"[1,null,-1,0,true,null,0]",
        b'[1,null,0,0,true,{"a":1},0]',
        b"[1,null,0,0,true,null,-1]",
    ],
)
def test_what_is_no_reply_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="it is n"):
        decode_reply(body)
