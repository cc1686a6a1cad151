"""Messages between a reward process and its parent arrive whole: exceptions, records and frames."""

from __future__ import annotations

import pickle
import sys
import threading
from email.message import Message
from types import MappingProxyType
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from rewardflow.errors import RateLimited
from rewardflow.reward.calls.faults import fault_of
from rewardflow.reward.code.processes.process_messages import (
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


def test_an_exception_that_cannot_be_unpickled_keeps_its_name_text_and_attributes() -> None:
    arrived: Any = transfer(StatusError("refused", response={"status": 503}))
    assert type(arrived).__name__ == "StatusError"
    assert (str(arrived), arrived.args, arrived.response) == ("refused", ("refused",), {"status": 503})


def test_an_exception_of_a_class_that_cannot_be_found_arrives_as_its_nearest_base_class() -> None:
    class Local(TimeoutError):
        pass

    arrived = transfer(Local("no answer"))
    assert type(arrived) is TimeoutError
    assert str(arrived) == "no answer"


def test_an_attribute_that_cannot_be_pickled_is_left_out() -> None:
    error = StatusError("refused", response={"status": 503})
    error.lock = threading.Lock()
    arrived: Any = transfer(error)
    assert type(arrived).__name__ == "StatusError"
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


class Telling(OSError):
    """Counts what of it is run."""

    num_runs = 0

    def __str__(self) -> str:
        Telling.num_runs += 1
        return "told by its own code"

    @property
    def response(self) -> None:
        Telling.num_runs += 1


def test_no_code_of_a_class_that_the_child_names_runs_in_the_parent() -> None:
    failure = pack_exception(Telling("gone"))
    Telling.num_runs = 0
    arrived = unpack_exception(failure)
    assert (type(arrived).__name__, str(arrived)) == ("Telling", "told by its own code")
    assert isinstance(arrived, OSError)
    assert not hasattr(arrived, "response")
    assert Telling.num_runs == 0


@pytest.mark.parametrize("name", ["print", "BaseException", "KeyboardInterrupt", "int", "__import__", "missing"])
def test_only_exceptions_of_python_are_built_whatever_name_the_child_sends(name: str) -> None:
    error = unpack_exception(Failure((("builtins", name),), (1,), {}, f"{name}: odd", ""))
    assert isinstance(error, RuntimeError)
    assert (type(error).__name__, str(error)) == (name, "odd")


def test_an_attribute_hides_no_method_of_exceptions() -> None:
    attributes = {"add_note": 1, "with_traceback": 2, "args": 3, "__notes__": 4, "note": 5}
    error: Any = unpack_exception(Failure((("builtins", "ValueError"),), ("odd",), attributes, "ValueError: odd", "t"))
    assert (error.args, error.note, error.__notes__) == (("odd",), 5, ["In the reward process:\nt"])


@pytest.mark.parametrize("attributes", [{}, {"status": [], "retryable": 1, "was_sent": "no", "retry_after_s": True}])
@pytest.mark.parametrize("name", ["RateLimited", "ServiceError", "Unparsable"])
def test_an_error_of_ours_with_fields_of_wrong_types_is_still_a_fault(name: str, attributes: dict[str, Any]) -> None:
    attributes = {**attributes, "headers": {"retry-after": 7}} if attributes else {}
    error = unpack_exception(Failure((("rewardflow.errors", name),), ("odd",), attributes, "", ""))
    assert fault_of(error).is_retryable


def test_what_a_client_tells_by_a_property_arrives() -> None:
    headers = Message()
    headers["Retry-After"] = "7"
    fault = fault_of(transfer(HTTPError("http://here", 429, "slow down", headers, None)))
    assert (fault.kind, fault.retry_after_s) == ("rate_limited", 7.0)
    assert "HTTP Error 429: slow down" in fault.message


def test_the_classes_of_a_reason_arrive_by_name() -> None:
    class NewConnectionError(OSError): ...

    NewConnectionError.__qualname__ = "NewConnectionError"
    fault = fault_of(transfer(URLError(NewConnectionError("refused"))))
    assert (fault.kind, fault.is_free) == ("service", True)


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
