"""One reward agent for many processes and training runs: a service's limits hold for the sum of them.

What both sides know
  spec.py        what the agent is: named rewards and settings, which can travel and be compared
  messages.py    what goes between client and host, and how rollouts and rewards are packed

The run's side, which knows no Ray
  client.py      `SharedAgent`, with the face of `RewardAgent`
  session.py     the parts of a client, from its hello to its goodbye
  line.py        the line to a host, and what becomes of messages when it breaks
  sender.py      what goes out, a message's worth at a time
  receiver.py    what comes in, and everything anew after a break
  unanswered.py  rollouts without a verdict, by serial number, and witnesses of whole groups
  claims.py      tickets and groups
  verdicts.py    each verdict to whoever waits for it
  counts.py      what was asked for and got, in numbers
  record.py      what a client writes down of its run

The agent's side, which knows no Ray
  host.py        does what clients ask, with one agent
  guests.py      the clients that are there: leases, polls, and what each has asked for
  samples.py     who wants which verdict
  outbox.py      what a client is still to be told
  settled.py     which serial numbers are over
  lacking.py     groups that wait for rollouts which may never come
  listeners.py   who keeps the record of a run
  attendance.py  which processes an agent is still there for

On Ray
  service.py     a host with a loop of its own, opened when first asked and again after it halted
  cluster.py     joining a Ray cluster, or a small one of our own
  ray_actor.py   the host as a named, detached Ray actor, and the line to it
"""
