from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AddMissingInstallations(_message.Message):
    __slots__ = ["group_id"]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ...) -> None: ...

class KpDeletion(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class KpLiveness(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class KpRotation(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ProcessPendingSelfRemove(_message.Message):
    __slots__ = ["group_id"]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ...) -> None: ...

class PullInDeadline(_message.Message):
    __slots__ = ["not_later_than_ns", "target_data_hash"]
    NOT_LATER_THAN_NS_FIELD_NUMBER: _ClassVar[int]
    TARGET_DATA_HASH_FIELD_NUMBER: _ClassVar[int]
    not_later_than_ns: int
    target_data_hash: bytes
    def __init__(self, target_data_hash: _Optional[bytes] = ..., not_later_than_ns: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ["add_missing_installations", "kp_deletion", "kp_liveness", "kp_rotation", "plugin", "process_pending_self_remove", "pull_in_deadline"]
    ADD_MISSING_INSTALLATIONS_FIELD_NUMBER: _ClassVar[int]
    KP_DELETION_FIELD_NUMBER: _ClassVar[int]
    KP_LIVENESS_FIELD_NUMBER: _ClassVar[int]
    KP_ROTATION_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    PROCESS_PENDING_SELF_REMOVE_FIELD_NUMBER: _ClassVar[int]
    PULL_IN_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    add_missing_installations: AddMissingInstallations
    kp_deletion: KpDeletion
    kp_liveness: KpLiveness
    kp_rotation: KpRotation
    plugin: _any_pb2.Any
    process_pending_self_remove: ProcessPendingSelfRemove
    pull_in_deadline: PullInDeadline
    def __init__(self, process_pending_self_remove: _Optional[_Union[ProcessPendingSelfRemove, _Mapping]] = ..., pull_in_deadline: _Optional[_Union[PullInDeadline, _Mapping]] = ..., kp_rotation: _Optional[_Union[KpRotation, _Mapping]] = ..., kp_deletion: _Optional[_Union[KpDeletion, _Mapping]] = ..., add_missing_installations: _Optional[_Union[AddMissingInstallations, _Mapping]] = ..., kp_liveness: _Optional[_Union[KpLiveness, _Mapping]] = ..., plugin: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...
