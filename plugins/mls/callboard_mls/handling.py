"""What the handlers have in common: where the backend comes from, and which errors end a task of a group.

Every other error of the backend passes through: the attempt has failed and the engine retries, without
counting it where the error is `callboard.ServiceUnavailable`.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from google.protobuf.message import Message

from callboard import Discard, Done, Outcome, TaskContext
from callboard_mls.backend import Backend, GroupNotFoundError, MalformedGroupIdError

M = TypeVar("M", bound=Message)

Handler = Callable[[M, TaskContext], Outcome | None]


def backend_of(ctx: TaskContext) -> Backend:
    """Return the host's MLS stack.

    Raises:
        callboard.ServiceMissingError: The host gave none; the kinds' `requires` keeps it from coming to that.
    """
    return ctx.service(Backend)  # type: ignore[type-abstract]


def ends_with_its_group(handler: Handler[M]) -> Handler[M]:
    """Finish the task when there is no such group, dead-letter it when there can be none."""

    @wraps(handler)
    def handle(message: M, ctx: TaskContext) -> Outcome | None:
        try:
            return handler(message, ctx)
        except GroupNotFoundError as error:
            ctx.logger.debug("nothing left to do: {}", error)
            return Done()
        except MalformedGroupIdError as error:
            return Discard(f"malformed group id: {error}")

    return handle
