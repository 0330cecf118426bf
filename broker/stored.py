"""What both buses share about stored messages: KV deletions and entries."""

import msgspec

from broker.bus import KvEntry, StoredMessage
from broker.topology import kv_subject


class Record(msgspec.Struct, frozen=True):
    """A stored message; ``is_deleted_key`` marks the deletion of a KV key."""

    message: StoredMessage
    is_deleted_key: bool = False


def kv_entry(bucket: str, record: Record) -> KvEntry:
    """Read a message of a bucket's stream as the entry that it is."""
    message = record.message
    key = message.subject.removeprefix(kv_subject(bucket, ""))
    return KvEntry(key, None if record.is_deleted_key else message.data, message.seq)
