"""Tasks and loops: what the decorators make of a coroutine function."""

import difflib
import functools
import inspect
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, NotRequired, ParamSpec, Required, TypeVar, cast, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic cannot take typing's before Python 3.12

from scheduler.errors import InvalidArguments, RegistrationError, ScheduleError
from scheduler.protocol.messages import LoopId, Message, problems_of
from scheduler.protocol.topology import ExchangeType, Subscription
from scheduler.tasks.context import Context
from scheduler.tasks.policy import Policy
from scheduler.tasks.retries import Retry
from scheduler.timing.durations import Duration, format_duration, parse_duration
from scheduler.timing.rates import Rate, parse_rate
from scheduler.timing.schedules import Every, Schedule

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TASK_TIMEOUT = timedelta(minutes=10)
DEFAULT_CONCURRENCY = 10
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SUPERVISION = LoopId("_supervision")
SUPERVISION_TIMEOUT = timedelta(minutes=3)  # a busy journal takes its time to be read


class Arguments:
    """The arguments of a task on the wire: JSON, checked against the function's annotations.

    Raises:
        RegistrationError: the signature is not one that a message can fill.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__name__", repr(function))
        hints = self._hints(function)
        parameters = inspect.signature(function).parameters.values()
        self.context = next((p.name for p in parameters if hints.get(p.name) is Context), None)
        self._signature = inspect.Signature([p for p in parameters if p.name != self.context])
        self.parameters: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.name == self.context:
                continue
            self._check_kind(parameter)
            optional = parameter.default is not inspect.Parameter.empty
            kind = self.parameters[parameter.name] = hints.get(parameter.name, Any)
            fields[parameter.name] = NotRequired[kind] if optional else Required[kind]
        self._adapter = self._adapter_of(fields)

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments of a call, by name, as JSON can hold them.

        Raises:
            InvalidArguments: the function cannot be called like this.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self._name} cannot be called like this: {error}.") from None
        return self.dump(bound.arguments)

    def load(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function, from what travelled.

        Raises:
            InvalidArguments: they do not fit; the message names each one.
        """
        try:
            return dict(self._adapter.validate_json(json.dumps(wire)))
        except ValidationError as error:
            raise self._misfit(error) from None

    def dump(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as JSON can hold them.

        Raises:
            InvalidArguments: they do not fit, or would not arrive as they are.
        """
        try:
            fitting = dict(self._adapter.validate_python(dict(arguments)))
        except ValidationError as error:
            raise self._misfit(error) from None
        try:
            wire = dict(self._adapter.dump_python(fitting, mode="json", by_alias=True))
            json.dumps(wire, allow_nan=False)
        except (ValueError, TypeError) as error:
            raise InvalidArguments(
                f"The arguments of {self._name} cannot travel as JSON: {error}."
            ) from None
        if self.load(wire) != fitting:
            raise InvalidArguments(
                f"The arguments of {self._name} would not arrive as they are: JSON turns them into "
                f"{json.dumps(wire)}. Pass plain values, and the names of secrets."
            )
        return wire

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
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RegistrationError(
                f"{self._name} has the parameter {str(parameter)!r}: the arguments of a task "
                "travel by name, so it can have neither *args, **kwargs nor positional-only ones."
            )

    def _adapter_of(self, fields: dict[str, Any]) -> TypeAdapter[Any]:
        shape: Any = TypedDict(self._name, fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
        try:
            return TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape))
        except (PydanticUserError, TypeError) as error:
            raise RegistrationError(
                f"The arguments of {self._name} cannot be checked: {error}. "
                "Annotate them with types that pydantic knows."
            ) from None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Everything the scheduler knows about a task.

    Attributes:
        called: whether one-off messages may ask for it.
        reads: how a task that subscribes to an exchange reads the messages of others.
        rate: how many runs a processor starts in a time.
        ordered: whether its messages are run one at a time over all processors, in order.
        expires: how old a call may get before it is not run any more.
        builtin: whether it is the scheduler's own, and never waits for the runs of others.
    """

    name: str
    function: Callable[..., Coroutine[Any, Any, Any]] = field(repr=False)
    arguments: Arguments = field(repr=False)
    policy: Policy
    timeout: timedelta = DEFAULT_TASK_TIMEOUT
    concurrency: int = DEFAULT_CONCURRENCY
    called: bool = False
    reads: "BodyReader | None" = None
    subscriptions: tuple[Subscription, ...] = ()
    rate: Rate | None = None
    ordered: bool = False
    expires: timedelta | None = None
    builtin: bool = False


SubscribeTo = tuple[str, str] | tuple[str, str, ExchangeType]


@dataclass(frozen=True, slots=True)
class Flow:
    """How one-off messages come to a task: what `Scheduler.task` takes besides the common options.

    Args:
        subscribe: pairs of the exchange of somebody else and a binding key; with the exchange's
            type as a third, it is declared here.
        rate: how many runs a processor starts in a time, such as "50/s".
        ordered: run one message at a time over all processors, in order; a retry blocks the others.
        expires: how old a message may get before it is not run any more.
    """

    subscribe: Sequence[SubscribeTo] = ()
    rate: str | None = None
    ordered: bool = False
    expires: Duration | None = None

    def subscriptions_of(self, task: str) -> tuple[Subscription, ...]:
        try:
            return tuple(Subscription(task, *cast(Any, wanted)) for wanted in self.subscribe)
        except TypeError:
            raise RegistrationError(
                f"subscribe of {task} is a list of (exchange, routing key), or (exchange, routing "
                f"key, type), got {self.subscribe!r}."
            ) from None


class BodyReader:
    """How a task reads a message that somebody else made: whole, into its one parameter.

    A parameter annotated `bytes` gets the body as it is, `str` its text; any other type is what
    pydantic makes of its JSON.

    Raises:
        RegistrationError: the function has not exactly one parameter, besides its `Context`.
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
        """The keyword argument for the function.

        Raises:
            InvalidArguments: the body is not what the parameter takes.
        """
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


def _is_json(content_type: str | None) -> bool:
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


@dataclass(frozen=True, slots=True)
class Loop:
    """A task and a schedule: what `seed` makes a token of."""

    id: LoopId
    task: TaskSpec
    schedule: Schedule
    args: Mapping[str, Any]

    def __str__(self) -> str:
        return str(self.id)


def absent(task: str) -> TaskSpec:
    """A task that this code does not have, but whose loops are in the broker."""

    async def nobody() -> None:
        raise NotImplementedError(f"The task {task!r} is not in this code.")

    return TaskSpec(task, nobody, Arguments(nobody), Policy(Retry(0)))


def supervision(interval: timedelta) -> Loop:
    """The loop that every namespace has; `scheduler.control.supervision` gives it its function."""
    spec = replace(
        absent(SUPERVISION.task), timeout=SUPERVISION_TIMEOUT, concurrency=1, builtin=True
    )
    return Loop(SUPERVISION, spec, Every(interval), {})


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that nothing has; names the nearest that something has."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}."
    return f"There is no {kind} {name!r}; {hint}"


class Task(Generic[P, R]):
    """A registered task. Calling it runs the coroutine function unchanged, in place."""

    def __init__(self, function: Callable[P, Coroutine[Any, Any, R]], spec: TaskSpec) -> None:
        self.spec = spec
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.spec.name}>"


def task_spec(
    function: Callable[..., Any],
    *,
    name: str | None,
    timeout: Duration,
    policy: Policy,
    concurrency: int,
    flow: "Flow | None" = None,
) -> TaskSpec:
    """Check what a decorator was given.

    Raises:
        RegistrationError: it cannot be a task; the message says what to change.
    """
    if not inspect.iscoroutinefunction(function):
        raise RegistrationError(
            f"{getattr(function, '__name__', function)!r} is not a coroutine function: "
            "write `async def` (and run blocking code with `asyncio.to_thread`)."
        )
    name = name or str(getattr(function, "__name__", ""))
    if not isinstance(name, str) or not NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistrationError(
            f"A task name has 1 to 64 letters, digits, '_' or '-', got {name!r}: give it a name=."
        )
    if name == SUPERVISION.task:
        raise RegistrationError(
            f"A task cannot be named {name!r}: the scheduler has one of this name in every "
            "namespace. Give it another name=."
        )
    if not isinstance(concurrency, int) or concurrency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistrationError(
            f"concurrency of {name} is a whole number, at least 1, got {concurrency!r}."
        )
    arguments = Arguments(function)
    subscriptions = flow.subscriptions_of(name) if flow else ()
    return TaskSpec(
        name,
        function,
        arguments,
        policy,
        _timeout(name, timeout),
        1 if flow and flow.ordered else concurrency,
        called=flow is not None,
        reads=BodyReader(function, arguments) if subscriptions else None,
        subscriptions=subscriptions,
        rate=parse_rate(flow.rate) if flow and flow.rate else None,
        ordered=flow is not None and flow.ordered,
        expires=_expiry(name, flow.expires) if flow and flow.expires is not None else None,
    )


def loop_of(
    spec: TaskSpec, schedule: Schedule, args: Mapping[str, Any] | None, key: str = ""
) -> Loop:
    """The loop of a task.

    Raises:
        RegistrationError: the arguments do not fit the task.
    """
    try:
        wire = spec.arguments.dump(args or {})
    except InvalidArguments as error:
        raise RegistrationError(
            f"{error} Give the parameters of {spec.name} defaults, or pass args={{...}}."
        ) from None
    return Loop(LoopId(spec.name, key), spec, schedule, wire)


def _expiry(name: str, expires: Duration) -> timedelta:
    try:
        return parse_duration(expires)
    except ScheduleError as error:
        raise RegistrationError(f"expires of {name}: {error}") from None


def _timeout(name: str, timeout: Duration) -> timedelta:
    try:
        span = parse_duration(timeout)
    except ScheduleError as error:
        raise RegistrationError(f"timeout of {name}: {error}") from None
    if not span:
        raise RegistrationError(
            f"timeout of {name} must be longer than {format_duration(span)}: a run cannot end "
            "before it starts."
        )
    return span
