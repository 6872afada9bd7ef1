"""The imaginary plugin's messages as a newer build has them: the same names, each with a field more."""

from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from tests.engine.messages import SendReceipt

_ADDED = 15


def _newer() -> dict[str, Any]:
    file = FileDescriptorProto()
    SendReceipt.DESCRIPTOR.file.CopyToProto(file)
    for message in file.message_type:
        message.field.add(
            name="added",
            number=_ADDED,
            type=FieldDescriptorProto.TYPE_STRING,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool: Any = DescriptorPool()  # of its own, since in the default one these names are the old messages'
    pool.AddSerializedFile(file.SerializeToString())
    classes = {}
    for message in file.message_type:
        descriptor = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        factory: Any = message_factory
        if hasattr(factory, "GetMessageClass"):
            classes[message.name] = factory.GetMessageClass(descriptor)
        else:  # protobuf before 4.22
            classes[message.name] = factory.MessageFactory(pool).GetPrototype(descriptor)
    return classes


_CLASSES = _newer()
NewerReceipt: Any = _CLASSES["SendReceipt"]
NewerThread: Any = _CLASSES["ReceiptThread"]
