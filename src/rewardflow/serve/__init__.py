"""`rewardflow serve`: one reward agent behind HTTP, for any trainer.

plain_records.py      records as JSON and back, by their type hints
served_agent.py       `connect(url, run=...)`: a client with the interface of `RewardAgent`
settings.py           where the server listens, its jobs and its proxy
jobs.py               who asks: tokens, shares, caps and queues of jobs
repeatable_requests.py  requests of callers that keep no session, which may ask again
answers.py            JSON answers and errors
own_protocol.py       the verbs of clients, and `/v1/score`
trainers.py           what OpenRLHF, slime, miles and NeMo Gym send
proxy.py              `/v1/chat/completions` with the agent's limits
metrics.py            figures for Prometheus
openapi.py            the description of all of it
agent_server.py       the HTTP server and its lifetime
"""

from rewardflow.serve.served_agent import connect

__all__ = ["connect"]
