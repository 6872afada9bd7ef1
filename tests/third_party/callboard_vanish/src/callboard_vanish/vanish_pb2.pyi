from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DeleteMessage(_message.Message):
    __slots__ = ["group_id", "message_id"]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    message_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ..., message_id: _Optional[bytes] = ...) -> None: ...
