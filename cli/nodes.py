"""`tiresias node`: the machines, their GPUs, and who has them."""

from typing import Annotated

import typer

from broker.schemas.node import NodeCordonRequested, NodeUncordonRequested
from broker.schemas.views import NodeView
from cli import client, output
from cli.client import Client
from cli.exit_codes import CommandError, ExitCode
from cli.options import NatsOption, OutputOption
from cli.output import Format
from cli.waiting import poll

CORDON_TIMEOUT_S = 10
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node.")]


def ls(form: OutputOption = Format.TABLE, nats: NatsOption = None) -> None:
    """List the nodes: how many GPUs are used, free and out of use.

    Example:
      tiresias node ls
    """
    views = client.run(nats, Client.nodes)
    if form is Format.JSON:
        output.print_json(views)
    elif form is Format.NAME:
        output.print_lines(view.node for view in views)
    elif not views:
        output.print_note("no node has joined")
    else:
        columns = ("NODE", "STATE", "GPUS", "USED", "FREE", "OUT", "MODEL", "HOST", "NOTE")
        output.print_table(columns, (_row(view) for view in views))


def show(node: NodeArgument, form: OutputOption = Format.TABLE, nats: NatsOption = None) -> None:
    """Show one node, GPU by GPU.

    Example:
      tiresias node show node-0
    """
    view = client.run(nats, lambda peer: peer.node(node))
    if form is Format.JSON:
        output.print_json(view)
        return
    cordoned = " (cordoned)" if view.cordoned else ""
    output.print_lines([output.printable(f"node {view.node}  {view.state}{cordoned}")])
    said = {"host": view.host, "problem": view.problem, "note": view.note}
    output.print_lines(
        output.printable(f"  {name:<9}{text}") for name, text in said.items() if text
    )
    rows = (
        (
            gpu.index,
            gpu.gpu_id,
            gpu.model or "-",
            view.unhealthy.get(gpu.gpu_id) or ("used" if gpu.gpu_id in view.owners else "free"),
            view.owners.get(gpu.gpu_id, "-"),
            view.details.get(gpu.gpu_id, ""),
        )
        for gpu in view.gpus
    )
    output.print_table(("GPU", "ID", "MODEL", "STATE", "RUN", "DETAIL"), rows)


def cordon(
    node: NodeArgument,
    *,
    note: Annotated[str, typer.Option(help="Why, for the people who see it.")] = "",
    nats: NatsOption = None,
) -> None:
    """Start nothing new on a node; what runs there goes on.

    Example:
      tiresias node cordon node-1 --note 'fan is loud'
    """
    request = NodeCordonRequested(node=node, note=note)
    client.run(nats, lambda peer: _set(peer, node, request, is_cordoned=True))


def uncordon(node: NodeArgument, nats: NatsOption = None) -> None:
    """Use a cordoned node again.

    Example:
      tiresias node uncordon node-1
    """
    request = NodeUncordonRequested(node=node)
    client.run(nats, lambda peer: _set(peer, node, request, is_cordoned=False))


async def _set(
    peer: Client,
    node: str,
    request: NodeCordonRequested | NodeUncordonRequested,
    *,
    is_cordoned: bool,
) -> None:
    await peer.node(node)
    verb = "cordon" if is_cordoned else "uncordon"
    await peer.operate(verb, request)

    async def is_done() -> bool:
        return (await peer.node(node)).cordoned is is_cordoned

    if not await poll(is_done, CORDON_TIMEOUT_S):
        raise CommandError(
            f"the request to {verb} {node} is stored, but not done after {CORDON_TIMEOUT_S} s: "
            "is a scheduler running? ('tiresias doctor')",
            ExitCode.WAIT_RAN_OUT,
        )
    output.print_lines([f"node {node} is {verb}ed"])


def _row(view: NodeView) -> tuple[object, ...]:
    used = len(view.owners)
    out = len(view.unhealthy.keys() - view.owners.keys())
    models = ", ".join(sorted({gpu.model for gpu in view.gpus if gpu.model}))
    notes = [
        text for text in ("cordoned" if view.cordoned else "", view.note, view.problem) if text
    ]
    free = len(view.gpus) - used - out
    return (
        view.node, view.state, len(view.gpus), used, free, out, models or "-", view.host,
        "; ".join(notes),
    )  # fmt: skip
