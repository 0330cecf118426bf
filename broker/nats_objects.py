"""Objects: bytes too large for a message, in the layout of the NATS object store (ADR-20).

Own code because nats-py reads objects through its ordered consumer, which can lose messages.
"""

import base64
import hashlib
import uuid
from contextlib import aclosing

import msgspec

from broker.errors import BusError
from broker.nats_api import JetStreamApi
from broker.nats_append import Appender
from broker.nats_connection import NatsConnection
from broker.nats_pull import OrderedReader

_CHUNK_BYTES = 128 * 1024
_REPLACE_SUBJECT = {"Nats-Rollup": "sub"}


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an object, stored after all its chunks."""

    name: str
    bucket: str
    nuid: str
    size: int = 0
    chunks: int = 0
    digest: str = ""
    deleted: bool = False


class ObjectStore:
    """Objects of all buckets; the newest of a name wins, and is complete or invisible."""

    def __init__(self, connection: NatsConnection, api: JetStreamApi, appender: Appender) -> None:
        self._connection = connection
        self._api = api
        self._appender = appender

    async def put(self, bucket: str, name: str, data: bytes) -> None:
        older = await self._meta(bucket, name)
        nuid = uuid.uuid4().hex
        chunks = [data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES)]
        for chunk in chunks:
            await self._appender.append(f"$O.{bucket}.C.{nuid}", chunk, {})
        meta = ObjectMeta(
            name=name,
            bucket=bucket,
            nuid=nuid,
            size=len(data),
            chunks=len(chunks),
            digest=_digest(data),
        )
        await self._appender.append(
            _meta_subject(bucket, name), msgspec.json.encode(meta), _REPLACE_SUBJECT
        )
        if older is not None:
            chunks_of_older = {"filter": f"$O.{bucket}.C.{older.nuid}"}
            await self._api.call(f"STREAM.PURGE.OBJ_{bucket}", chunks_of_older)

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return an object, None if there is none; `BusError` if it is damaged."""
        meta = await self._meta(bucket, name)
        if meta is None or meta.deleted:
            return None
        chunks: list[bytes] = []
        if meta.chunks:
            subject = f"$O.{bucket}.C.{meta.nuid}"
            reader = OrderedReader(self._connection, self._api, f"OBJ_{bucket}", subject, 1)
            async with aclosing(reader.records()) as records:
                async for record in records:
                    if record is not None:
                        chunks.append(record.message.data)
                    if record is None or len(chunks) == meta.chunks:
                        break
        data = b"".join(chunks)
        if _digest(data) != meta.digest:
            raise BusError(f"object {name!r} of bucket {bucket!r} is damaged: digests differ")
        return data

    async def _meta(self, bucket: str, name: str) -> ObjectMeta | None:
        message = await self._api.last_message(f"OBJ_{bucket}", _meta_subject(bucket, name))
        return None if message is None else msgspec.json.decode(message.data, type=ObjectMeta)


def _meta_subject(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _digest(data: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
