"""An imaginary plugin's messages, generated from `receipts.proto`."""

from tests.engine.messages.receipts_pb2 import (
    LinkedReceipt,
    ReceiptArchive,
    ReceiptThread,
    SendReceipt,
    TaggedReceipt,
)

__all__ = ["LinkedReceipt", "ReceiptArchive", "ReceiptThread", "SendReceipt", "TaggedReceipt"]
