from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LinkedReceipt(_message.Message):
    __slots__ = ["previous", "receipt"]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    previous: LinkedReceipt
    receipt: TaggedReceipt
    def __init__(self, previous: _Optional[_Union[LinkedReceipt, _Mapping]] = ..., receipt: _Optional[_Union[TaggedReceipt, _Mapping]] = ...) -> None: ...

class ReceiptArchive(_message.Message):
    __slots__ = ["cover", "folder"]
    class Folder(_message.Message):
        __slots__ = ["pages"]
        class Page(_message.Message):
            __slots__ = ["receipts"]
            class ReceiptsEntry(_message.Message):
                __slots__ = ["key", "value"]
                KEY_FIELD_NUMBER: _ClassVar[int]
                VALUE_FIELD_NUMBER: _ClassVar[int]
                key: int
                value: SendReceipt
                def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[SendReceipt, _Mapping]] = ...) -> None: ...
            RECEIPTS_FIELD_NUMBER: _ClassVar[int]
            receipts: _containers.MessageMap[int, SendReceipt]
            def __init__(self, receipts: _Optional[_Mapping[int, SendReceipt]] = ...) -> None: ...
        PAGES_FIELD_NUMBER: _ClassVar[int]
        pages: _containers.RepeatedCompositeFieldContainer[ReceiptArchive.Folder.Page]
        def __init__(self, pages: _Optional[_Iterable[_Union[ReceiptArchive.Folder.Page, _Mapping]]] = ...) -> None: ...
    COVER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    cover: SendReceipt
    folder: ReceiptArchive.Folder
    def __init__(self, cover: _Optional[_Union[SendReceipt, _Mapping]] = ..., folder: _Optional[_Union[ReceiptArchive.Folder, _Mapping]] = ...) -> None: ...

class ReceiptThread(_message.Message):
    __slots__ = ["receipt", "replies"]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    receipt: SendReceipt
    replies: _containers.RepeatedCompositeFieldContainer[ReceiptThread]
    def __init__(self, receipt: _Optional[_Union[SendReceipt, _Mapping]] = ..., replies: _Optional[_Iterable[_Union[ReceiptThread, _Mapping]]] = ...) -> None: ...

class SendReceipt(_message.Message):
    __slots__ = ["group_id", "text"]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    text: str
    def __init__(self, group_id: _Optional[bytes] = ..., text: _Optional[str] = ...) -> None: ...

class TaggedReceipt(_message.Message):
    __slots__ = ["tags"]
    class TagsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.ScalarMap[str, str]
    def __init__(self, tags: _Optional[_Mapping[str, str]] = ...) -> None: ...
