"""Define tasks: what the decorators make of a function, and its arguments on the wire."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NotRequired,
    ParamSpec,
    Required,
    TypeVar,
    cast,
    get_origin,
    get_type_hints,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict  # pydantic cannot take typing's before Python 3.12

from scheduler.errors import InvalidArguments, RegistrationError, UsageError
from scheduler.protocol.messages import Message, compact_json, problems_of
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Subscription
from scheduler.tasks.context import Context
from scheduler.tasks.retries import Policy
from scheduler.timing.durations import shown
from scheduler.timing.pacing import Rate

_STRICT = json.JSONEncoder(allow_nan=False)


class Arguments:
    """Check arguments on the wire: JSON that fits the function's annotations.

    Raises:
        RegistrationError: the signature is not one that a message can fill.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__name__", repr(function))
        hints = self._hints(function)
        parameters = inspect.signature(function).parameters.values()
        self.context = next((p.name for p in parameters if _is_context(hints.get(p.name))), None)
        self._signature = inspect.Signature([p for p in parameters if p.name != self.context])
        self.parameters: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.name == self.context:
                continue
            self._check_kind(parameter)
            if parameter.name == "ctx" and "ctx" not in hints:
                problem = "has no annotation: write `ctx: Context`, or give it another name"
                raise RegistrationError(f"The parameter ctx of {self._name} {problem}.")
            optional = parameter.default is not inspect.Parameter.empty
            kind = self.parameters[parameter.name] = hints.get(parameter.name, Any)
            fields[parameter.name] = NotRequired[kind] if optional else Required[kind]
        self._adapter = self._adapter_of(fields)
        schema = str(self._adapter.core_schema)
        self._has_sets = "'set'" in schema or "'frozenset'" in schema

    @property
    def required(self) -> list[str]:
        parameters = self._signature.parameters.values()
        return [each.name for each in parameters if each.default is inspect.Parameter.empty]

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call by name, as JSON values, or raise `InvalidArguments`."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self._name} cannot be called like this: {error}.") from None
        return self.dump(bound.arguments)

    def load(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments from the wire, or raise `InvalidArguments`, which names each."""
        return self._read(compact_json(wire))

    def dump(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values, or raise `InvalidArguments` if they would change."""
        try:
            fitting = dict(self._adapter.validate_python(dict(arguments)))
        except ValidationError as error:
            raise self._misfit(error) from None
        try:
            wire = self._adapter.dump_python(fitting, mode="json", by_alias=True)
            if self._has_sets:
                wire = _in_order(wire, fitting)
            text = _STRICT.encode(wire)
        except (ValueError, TypeError) as error:
            raise InvalidArguments(
                f"The arguments of {self._name} cannot be sent as JSON: {error}."
            ) from None
        if self._read(text) != fitting:
            raise InvalidArguments(
                f"The arguments of {self._name} would change on the way: JSON turns them into "
                f"{text}. Pass plain values, and the names of secrets."
            )
        return wire

    def _read(self, text: str | bytes) -> dict[str, Any]:
        try:
            return dict(self._adapter.validate_json(text))
        except ValidationError as error:
            raise self._misfit(error) from None

    def _misfit(self, error: ValidationError) -> InvalidArguments:
        return InvalidArguments(f"The arguments do not fit {self._name}: {problems_of(error)}.")

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise RegistrationError(
                f"The annotations of {self._name} cannot be resolved: {error}. "
                "Import the types it names at module level, outside `if TYPE_CHECKING`."
            ) from None

    def _check_kind(self, parameter: inspect.Parameter) -> None:
        if parameter.name in ("self", "cls"):
            raise RegistrationError(
                f"{self._name} is a method; tasks must be module-level functions."
            )
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RegistrationError(
                f"{self._name} has the parameter {str(parameter)!r}: the arguments of a task "
                "are sent by name, so it can have neither *args, **kwargs nor positional-only ones."
            )

    def _adapter_of(self, fields: dict[str, Any]) -> TypeAdapter[Any]:
        shape: Any = TypedDict(self._name, fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
        try:
            return TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape))
        except (PydanticUserError, TypeError) as error:
            what = str(error).partition(". ")[0]  # what follows is for who writes the type
            raise RegistrationError(
                f"The arguments of {self._name} cannot be checked: {what}. "
                "Annotate them with types that pydantic knows."
            ) from None


class BodyReader:
    """Read a message of another application into a task's one parameter.

    A parameter annotated `bytes` gets the raw body, `str` its text; any other type is what pydantic
    makes of its JSON.
    """

    def __init__(self, function: Callable[..., Any], arguments: Arguments) -> None:
        if len(arguments.parameters) != 1:
            raise RegistrationError(
                f"A task that subscribes takes a message in one parameter, besides its Context; "
                f"{getattr(function, '__name__', function)} has {len(arguments.parameters)}."
            )
        ((self._name, self._kind),) = arguments.parameters.items()
        self._adapter: TypeAdapter[Any] = TypeAdapter(self._kind)

    def read(self, message: Message) -> dict[str, Any]:
        """Return the keyword argument for the function, or raise `InvalidArguments`."""
        return {self._name: self._value(message)}

    def _value(self, message: Message) -> Any:
        if self._kind is bytes:
            return message.body
        try:
            if self._kind is str:
                return message.body.decode()
            if not _is_json(message.content_type):
                raise InvalidArguments(
                    f"The content type {message.content_type!r} cannot be read into "
                    f"{self._name!r}: annotate it as bytes to get the body as it is."
                )
            return self._adapter.validate_json(message.body)
        except ValidationError as error:
            raise InvalidArguments(
                f"The body does not fit {self._name!r}: {problems_of(error)}."
            ) from None
        except UnicodeDecodeError as error:
            raise InvalidArguments(f"The body is not UTF-8 text: {error}.") from None


def parse_arguments(text: str, of: str) -> dict[str, Any]:
    """Parse the JSON object of arguments that a person has typed.

    Args:
        of: its name for the error, such as an option.

    Raises:
        UsageError: it is no JSON object.
    """
    expected = f"{of}: expected a JSON object such as '{{\"n\": 1}}', got {shown(text)}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{expected}: {error}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{expected}.")
    return cast("dict[str, Any]", value)


def _in_order(wire: Any, value: Any) -> Any:
    """Sort the lists that were sets: each process has the items of a set in another order."""
    if isinstance(value, (set, frozenset)) and isinstance(wire, list):
        return sorted(cast(list[Any], wire), key=compact_json)
    members = _members_of(value)
    match wire:
        case dict() if len(members) == len(cast(Mapping[str, Any], wire)):
            items = zip(cast(Mapping[str, Any], wire).items(), members, strict=True)
            return {key: _in_order(each, member) for (key, each), member in items}
        case list() if len(members) == len(cast(list[Any], wire)):
            return [_in_order(*each) for each in zip(cast(list[Any], wire), members, strict=True)]
        case _:  # a serializer of its own made something else of it
            return wire


def _members_of(value: Any) -> Sequence[Any]:
    match value:
        case BaseModel():
            return [member for _, member in value]
        case dict():
            return [*cast(Mapping[Any, Any], value).values()]
        case list() | tuple():
            return cast(Sequence[Any], value)
        case _:
            names = (each.name for each in fields(value)) if is_dataclass(value) else ()
            return [getattr(value, name) for name in names]


def _is_context(kind: object) -> bool:
    return kind is Context or get_origin(kind) is Context


def _is_json(content_type: str | None) -> bool:
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TASK_TIMEOUT = timedelta(minutes=10)
DEFAULT_CONCURRENCY = 10
SUPERVISION = LoopId("_supervision")
Executor = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Describe a task.

    Attributes:
        called: whether one-off messages may ask for it.
        reads: how a task that subscribes to an exchange reads the messages.
        rate: how many runs a processor starts in a time.
        ordered: whether its messages are run one at a time over all processors, in order.
        expires: how old a call may get before it is not run any more.
        history: whether the history of calls records each attempt, not only failed ones.
        builtin: whether it is the scheduler's own, and never waits for the runs of others.
        executor: where its blocking function runs; None: it is a coroutine function.
        aliases: its former names: it takes over their messages.
        shards: how many queues share its loops.
    """

    name: str
    function: Callable[..., Any] = field(repr=False)
    arguments: Arguments = field(repr=False)
    policy: Policy
    timeout: timedelta = DEFAULT_TASK_TIMEOUT
    concurrency: int = DEFAULT_CONCURRENCY
    called: bool = False
    reads: BodyReader | None = None
    subscriptions: tuple[Subscription, ...] = ()
    rate: Rate | None = None
    ordered: bool = False
    expires: timedelta | None = None
    history: bool = False
    builtin: bool = False
    executor: Executor | None = None
    aliases: tuple[str, ...] = ()
    shards: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names whose queues it consumes: its own, and its aliases."""
        return self.name, *self.aliases

    def is_named(self, name: str) -> bool:
        """Return whether a name is its own, or one of its aliases."""
        return name == self.name or name in self.aliases

    @property
    def blocks(self) -> bool:
        """Return whether a thread waits for its runs."""
        return self.executor is not None


OF_CELERY = {"delay": "send", "apply_async": "send_later", "s": "send"}


class Task(Generic[P, R]):
    """Register a task. Calling it calls the function unchanged, in place."""

    def __init__(self, function: Callable[P, R], spec: TaskSpec) -> None:
        self.spec = spec
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.spec.name}>"

    if not TYPE_CHECKING:  # to a type checker, each attribute would be there

        def __getattr__(self, name: str) -> Any:
            """Suggest an alternative to an attribute of a Celery task."""
            kind = type(self)
            here = OF_CELERY.get(name, "")
            hint = f": write {here}(...)" if here and hasattr(kind, here) else ""
            if (here or name).startswith("send") and not hasattr(kind, "send"):
                hint = ": a loop gets no calls; register a task for them with @app.task"
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}{hint}")
