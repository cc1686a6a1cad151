"""One reward agent for many processes and training runs: a service's limits hold for all of them together.

Both sides
  spec.py               describes the agent: named rewards and settings, which can be sent and compared
  messages.py           the messages between client and host, and how rollouts and rewards are packed

The client, in a process of a run; it does not import Ray
  client.py             `SharedAgent`, with the interface of `RewardAgent`
  session.py            the parts of an open client, and the task that reads deliveries
  connection.py         the connection to a host: retries, reconnects, and the `Transport` protocol
  sender.py             sends rollouts and requests in batches
  waiting_rollouts.py   rollouts without a verdict, by serial number
  client_tickets.py     the client's tickets and groups
  verdict_delivery.py   gives each verdict to its group or its caller
  client_counts.py      counts requests and verdicts
  record.py             writes the run's events

The host, in the agent's process; it does not import Ray
  host.py               serves clients with one agent
  host_clients.py       the connected clients: leases, polls, requested serial numbers
  samples.py            which clients want which verdict
  waiting_bytes.py      limits the bytes of rollouts that a run has waiting
  outbox.py             deliveries that a client has not confirmed, and the clients that record a run
  incomplete_groups.py  gives up groups whose rollouts never all arrive

On Ray
  service.py            a host on an event loop in its own thread, reopened after a halt
  cluster.py            joins a Ray cluster, or starts a private one
  ray_actor.py          the host as a named, detached Ray actor, and the transport to it
"""
