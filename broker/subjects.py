"""Every subject Tiresias uses, one builder each; nobody else writes a subject by hand.

| subject | carried by |
| --- | --- |
| ``tiresias.v1.jobs.<user>.submit|cancel|hold|release`` | input log |
| ``tiresias.v1.in.node.<node>.<kind>`` (agents, launchers) | input log |
| ``tiresias.v1.in.operator.<user>.<kind>`` | input log |
| ``tiresias.v1.in.scheduler.<kind>`` (the leader: clock, settings, lost nodes) | input log |
| ``tiresias.v1.in.profile.<kind>`` | input log |
| ``tiresias.v1.log.leader`` | decision log |
| ``tiresias.v1.cmd.<node>.<kind>`` | decision log |
| ``tiresias.v1.evt.job.<job>.<kind>``, ``tiresias.v1.evt.node.<node>.<kind>`` | decision log |
| ``tiresias.v1.dead.<kind>`` | dead letters |
| ``tiresias.v1.hb.<node>`` | core NATS, lost when nobody listens |
| ``tiresias.v1.tel.<node>`` | telemetry: last value per node, in memory |
| ``tiresias.v1.ctl.<node>.logs`` | core NATS request to a launcher: read a log |
| ``tiresias.v1.ctl.inventory`` | core NATS, a new leader to all launchers: report your runs |
| ``tiresias.v1.api.<verb>`` | core NATS request to the leading scheduler: explain |
"""

from broker.ids import checked_token

PREFIX = "tiresias.v1"
JOBS_ALL = f"{PREFIX}.jobs.>"
INPUTS_ALL = f"{PREFIX}.in.>"
LOG_ALL = f"{PREFIX}.log.>"
COMMANDS_ALL = f"{PREFIX}.cmd.>"
FACTS_ALL = f"{PREFIX}.evt.>"
DEAD_ALL = f"{PREFIX}.dead.>"
HEARTBEATS_ALL = f"{PREFIX}.hb.*"
TELEMETRY_ALL = f"{PREFIX}.tel.*"
LEADER = f"{PREFIX}.log.leader"
INVENTORY = f"{PREFIX}.ctl.inventory"


def job_request(user: str, verb: str) -> str:
    """``verb`` is submit, cancel, hold or release."""
    return f"{PREFIX}.jobs.{checked_token('user', user)}.{verb}"


def node_input(node: str, kind: str) -> str:
    """What an agent or a launcher of ``node`` tells the scheduler."""
    return f"{PREFIX}.in.node.{checked_token('node', node)}.{kind}"


def operator_input(user: str, kind: str) -> str:
    return f"{PREFIX}.in.operator.{checked_token('user', user)}.{kind}"


def scheduler_input(kind: str) -> str:
    return f"{PREFIX}.in.scheduler.{kind}"


def profile_input(kind: str) -> str:
    return f"{PREFIX}.in.profile.{kind}"


def command(node: str, kind: str) -> str:
    return f"{PREFIX}.cmd.{checked_token('node', node)}.{kind}"


def commands_of(node: str) -> str:
    """The filter of one launcher's consumer."""
    return f"{PREFIX}.cmd.{checked_token('node', node)}.>"


def job_fact(job_id: int, kind: str) -> str:
    return f"{PREFIX}.evt.job.{job_id}.{kind}"


def job_facts(job_id: int) -> str:
    """The filter of one job's whole story."""
    return f"{PREFIX}.evt.job.{job_id}.>"


def node_fact(node: str, kind: str) -> str:
    return f"{PREFIX}.evt.node.{checked_token('node', node)}.{kind}"


def dead_letter(kind: str) -> str:
    return f"{PREFIX}.dead.{kind}"


def heartbeat(node: str) -> str:
    return f"{PREFIX}.hb.{checked_token('node', node)}"


def telemetry(node: str) -> str:
    return f"{PREFIX}.tel.{checked_token('node', node)}"


def control(node: str, verb: str) -> str:
    """Core NATS request to one launcher; ``verb`` is logs."""
    return f"{PREFIX}.ctl.{checked_token('node', node)}.{verb}"


def api(verb: str) -> str:
    """Core NATS request to the leading scheduler; ``verb`` is explain."""
    return f"{PREFIX}.api.{verb}"


def tokens_after_prefix(subject: str) -> list[str]:
    """Split a subject of ours into the tokens after ``tiresias.v1``."""
    return subject.split(".")[2:]
