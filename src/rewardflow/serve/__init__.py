"""`rewardflow serve`: one reward agent behind HTTP, for any trainer.

  served_agent.py         `connect(url, run=...)`: a client with the interface of `RewardAgent`

The server
  settings.py             where it listens, its proxy, and its jobs: tokens, shares and queues
  agent_server.py         routes, tokens, and the order in which everything ends
  repeatable_requests.py  requests of callers that keep no session, which may ask again
  trainers.py             what OpenRLHF, slime, miles and NeMo Gym send
  chat_proxy.py           `/v1/chat/completions` of another service, with limits, retries, cap and journal
  prometheus.py           figures for Prometheus
  openapi.py              the description of all of it

Both
  own_protocol.py         the client's messages as JSON, and `/v1/score`
  http_json.py            records as JSON and back, by their type hints; answers and errors
"""

from rewardflow.serve.served_agent import connect

__all__ = ["connect"]
