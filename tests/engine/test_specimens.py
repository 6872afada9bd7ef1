"""Messages made from their type show all that the type can hold, and are the same each time."""

from google.protobuf.descriptor_pb2 import FileDescriptorProto, UninterpretedOption
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard._specimens import specimens
from callboard.testing.contract._messages import messages
from callboard.wire import KpRotation, Task


def test_each_field_has_a_value_of_its_own() -> None:
    made = specimens(SendReceipt)

    assert made == {"no field": SendReceipt(), "every field": SendReceipt(group_id=b"group_id", text="text")}
    assert list(specimens(KpRotation)) == ["no field"]


def test_each_member_of_a_oneof_is_shown() -> None:
    made = specimens(Task)

    [oneof] = Task.DESCRIPTOR.oneofs
    assert {message.WhichOneof(oneof.name) for message in made.values()} == {
        None,
        *(field.name for field in oneof.fields),
    }
    assert made["task: plugin"].plugin.type_url.endswith("StringValue")


def test_a_recursive_type_comes_to_an_end() -> None:
    thread = specimens(ReceiptThread)["every field"]

    assert thread.replies[0].replies[0].replies[0] == ReceiptThread()
    assert thread.replies[0].receipt == thread.receipt == SendReceipt(group_id=b"group_id", text="text")


def test_all_sorts_of_fields_are_filled() -> None:
    made = specimens(FileDescriptorProto)["every field"]

    numbers = [field.number for field, _ in made.ListFields()]
    assert numbers == sorted(field.number for field in FileDescriptorProto.DESCRIPTOR.fields)


def test_what_a_type_requires_is_always_there() -> None:
    for message in specimens(UninterpretedOption.NamePart).values():
        assert message.IsInitialized()


@given(st.one_of(messages(SendReceipt), messages(ReceiptThread), messages(UninterpretedOption)))
def test_made_up_messages_can_be_written_and_read(message: Message) -> None:
    assert type(message).FromString(message.SerializeToString()) == message
