"""Calls go to the least busy endpoint that works; retries go elsewhere."""

from __future__ import annotations

from rewardflow.reward.limits.endpoints import Endpoints


def test_without_names_there_is_one_nameless_endpoint() -> None:
    endpoints = Endpoints((), window=5, share=0.8)
    assert endpoints.start(0.0, None).name is None


def test_calls_spread_evenly_over_endpoints() -> None:
    endpoints = Endpoints(("a", "b", "c"), window=5, share=0.8)
    for _ in range(30):
        endpoints.start(0.0, None)
    assert [endpoint.in_flight for endpoint in endpoints.statistics()] == [10, 10, 10]


def test_a_retry_avoids_the_endpoint_that_failed() -> None:
    endpoints = Endpoints(("a", "b"), window=5, share=0.8)
    first = endpoints.start(0.0, None)
    first.in_flight -= 1
    assert endpoints.start(0.0, first) is not first


def test_a_broken_endpoint_gets_no_calls_but_its_probe_and_the_service_is_not_out() -> None:
    endpoints = Endpoints(("a", "b"), window=5, share=0.8)
    broken = endpoints.start(0.0, None)
    for _ in range(5):
        broken.breaker.failed(0.0, "503")
    assert {endpoints.start(0.5, None).name for _ in range(10)} == {"b"}
    assert endpoints.outage_since_s() is None
    assert endpoints.start(1.0, None) is broken, "the probe is due"
    assert endpoints.start(1.0, None).name == "b", "and one probe is enough"


def test_the_service_is_out_when_every_endpoint_is() -> None:
    endpoints = Endpoints(("a", "b"), window=1, share=0.8)
    for at_s in (3.0, 3.5):
        endpoints.start(at_s, None).breaker.failed(at_s, "503")
    assert endpoints.outage_since_s() == 3.5
    assert endpoints.ready_at(3.5) == 4.0
