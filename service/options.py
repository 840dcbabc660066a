"""The options of a job, each defined once: its type, bounds, documentation and command-line flag.

The fields of these classes define:

- the options of commands, such as `tilewright tune` and `job submit` (`cli.options`);
- the fields of requests, their validation and their JSON Schema (`api.schemas.options`);
- the JSON form in which a job stores its options, with a strict reader (`JobOptions.from_json`);
- the command line that is equivalent to a job, which the dashboard shows (`option_words`).

To add an option, add a field here, and use it in the code that runs jobs. This module imports
neither NumPy nor Pydantic, because the help of every command imports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from tilewright.compiler.errors import suggestion
from tilewright.compiler.limits import LARGEST_SIZE, MAX_THREADS, Numerics, Precision
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import (
    Between,
    JsonForm,
    Length,
    MalformedError,
    Matching,
)
from tilewright.service.option_texts import (
    OptionError,
    parse_share,
    parse_sizes,
    parse_values,
    share_text,
    size_texts,
    value_texts,
)

if TYPE_CHECKING:
    from tilewright.compiler.mode import Mode
    from tilewright.compiler.targets.target import Target

T = TypeVar("T")

DIGEST = "[0-9a-f]{64}"
"""Regular expression of a SHA-256 digest in hexadecimal."""

DAY = 86400


@dataclass(frozen=True, slots=True)
class TextForm:
    """The text form of an option's value on a command line.

    Attributes:
        metavar: the placeholder for the value in the help of commands.
        read: parses the value from (flag, text), or from (flag, list of texts) if the flag is
            repeatable. Raises OptionError for an invalid text.
        write: formats a value as a text, or as a list of texts if the flag is repeatable.
        repeatable: whether the flag is given once per entry of the value.
    """

    metavar: str
    read: Callable[[str, Any], Any]
    write: Callable[[Any], Any]
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class UserOption:
    """The documentation and the command-line flag of an option, as metadata of its field.

    Attributes:
        help: the documentation, for the help of commands and for the REST interface.
        flag: the flag of commands, such as `--trials`; "" if commands read the value in another
            way.
        text: the text form of the value; None for a number, an enumeration or a boolean.
        example: an example value for the documentation of the REST interface.
    """

    help: str
    flag: str = ""
    text: TextForm | None = None
    example: Any = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field of a class of options, such as `trials` of `JobBudget`.

    Attributes:
        name: the name of the field.
        annotation: the type of the field, with its metadata.
        option: the documentation and the flag.
        default: the default value.
    """

    name: str
    annotation: Any
    option: UserOption
    default: Any


def option_fields(kind: Any) -> tuple[OptionField, ...]:
    """Return the fields of a class of options, in the order of their definition."""
    return _option_fields(kind)


@cache
def _option_fields(kind: Any) -> tuple[OptionField, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_described(each, hints[each.name]) for each in fields(kind))


def _described(declared: Field[Any], annotation: Any) -> OptionField:
    (option,) = (mark for mark in annotation.__metadata__ if isinstance(mark, UserOption))
    made = declared.default_factory
    default = declared.default if made is MISSING else made()
    return OptionField(declared.name, annotation, option, default)


def given_values(options: Any) -> dict[str, Any]:
    """Return the values of all fields of an options object, by field name."""
    return {each.name: getattr(options, each.name) for each in option_fields(type(options))}


def option_words(options: Any) -> list[str]:
    """Return the command-line words for an options object: ["--trials", "500"].

    Options with their default value are left out.
    """
    words: list[str] = []
    for each in option_fields(type(options)):
        flag, value = each.option.flag, getattr(options, each.name)
        if not flag or value == each.default:
            continue
        text = each.option.text
        if value is True:
            words.append(flag)
        elif text is None:
            words += [flag, str(value)]
        else:
            for one in text.write(value) if text.repeatable else [text.write(value)]:
                words += [flag, one]
    return words


def stated_words(stated: Mapping[str, Any]) -> list[str]:
    """Return the command-line words for options given by name, such as {"trials": 500}.

    The names are fields of `ModeOptions`, `JobOptions` and `QueueOptions`.

    Raises:
        OptionError: if an option is unknown or outside its bounds.
    """
    left, words = dict(stated), []
    for kind in (ModeOptions, JobOptions, QueueOptions):
        own = {each.name: left.pop(each.name) for each in option_fields(kind) if each.name in left}
        try:
            words += option_words(kind.from_json(own))
        except MalformedError as error:
            raise OptionError(str(error)) from error
    if left:
        kinds = (ModeOptions, JobOptions, QueueOptions)
        known = [each.name for kind in kinds for each in option_fields(kind)]
        raise OptionError(f"no such option: {', '.join(left)}{suggestion(next(iter(left)), known)}")
    return words


def of_earlier_releases(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the stored options of a job from an earlier release, so that they are valid now.

    Options that are null are left out, which selects the default. If `seconds`, `target_ms` or
    `stop_gain` is outside the bounds of this release, it becomes the nearest bound. All other
    values are returned unchanged and unchecked.
    """
    options = {name: value for name, value in stored.items() if value is not None}
    for name, least in (("seconds", LEAST_BUDGET_SECONDS), ("target_ms", LEAST_TARGET_MS)):
        if _is_number(options.get(name)) and 0 < options[name] < least:
            options[name] = least
    if _is_number(options.get("stop_gain")) and MOST_STOP_GAIN < options["stop_gain"] < 1:
        options["stop_gain"] = MOST_STOP_GAIN
    return options


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked(options: JsonValue) -> Any:
    """Check that all options are within their bounds. Return an equal object.

    Raises:
        OptionError: if a value is outside its bounds; the message names the flag.
    """
    try:
        return type(options).from_json(options.to_json())
    except MalformedError as error:
        cause = error.__cause__ if isinstance(error.__cause__, MalformedError) else error
        flags = {each.name: each.option.flag for each in option_fields(type(options))}
        name = cause.path.partition(".")[0].partition("[")[0]
        raise OptionError(f"{flags.get(name) or name}: {cause.problem}") from error


def _with_form(what: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that declares the JSON form of a class of options.

    Any field may be missing in the JSON. `what` names the class in error messages.
    """

    def declared(kind: type[T]) -> type[T]:
        names = tuple(each.name for each in fields(kind))  # type: ignore[arg-type]
        kind.json_form = JsonForm(what, optional=names)  # type: ignore[attr-defined]
        return kind

    return declared


Digest = Annotated[str, Matching(DIGEST)]
Size = Annotated[int, Between(1, LARGEST_SIZE)]
SizeText = Annotated[str, Length(most=400)]
"""Text with a range of sizes and size hints, as `size_choices` parses it."""

SHARE_TEXT = TextForm("SHARE", parse_share, share_text)

HINTS = "LOW..HIGH[:STEP][@HINT[:SHARE],...]|@HINT[:SHARE],..."

SIZES_TEXT = TextForm(
    f"NAME=[SIZE,...,]SIZE|{HINTS}",
    lambda _, texts: parse_sizes(texts),
    size_texts,
    repeatable=True,
)

VALUES_TEXT = TextForm(
    "NAME=NUMBER", lambda _, texts: parse_values(texts), value_texts, repeatable=True
)


@_with_form("mode options")
@dataclass(frozen=True, slots=True)
class ModeOptions(JsonValue):
    """The options that select the mode of a compilation, except for its target."""

    threads: Annotated[
        int, Between(1, MAX_THREADS), UserOption("Threads of a run", "--threads")
    ] = 1
    numerics: Annotated[
        Numerics,
        UserOption("strict: no Winograd, no Strassen; loose: F(6) too", "--numerics"),
    ] = "fast"
    precision: Annotated[
        Precision,
        UserOption("Type in which a float32 model stores and multiplies values", "--precision"),
    ] = "float32"

    @classmethod
    def of(cls, mode: Mode) -> ModeOptions:
        """Return the options whose values are those of a mode."""
        return cls.from_json({n: v for n, v in mode.to_json().items() if n in cls.__slots__})

    def mode(self, target: Target, **more: Any) -> Mode:
        """Return the mode with these options for a target.

        `more` has values for the fields of Mode that are not options.
        """
        from tilewright.compiler.mode import Mode

        return Mode(target, **given_values(self), **more)


FIXED_SECONDS = 9.0
"""Seconds of the phases before the first trial and after the last one that do not count towards the
budget.

The limit of a command is 1.25 times its budget plus 10 s. One of these seconds is for the start of
its process.
"""

LATE_SHARE, LATE_SECONDS = 1.25, 5.0
"""Factor of the budget and additional seconds. A command that has taken longer than `LATE_SHARE *
budget + LATE_SECONDS` is late."""

MORE_SECONDS = (2.0, 10.0)
"""Smallest and largest time in seconds for verifying a program for ranges at sizes other than the
hints."""

STOP_GAIN = 0.005
"""Default of `stop_gain`: tuning ends if a further minute is expected to gain less. A gain of 0.5 %
is not noticeable, and most runs reach this limit long before their trials are spent."""


LEAST_BUDGET_SECONDS, LEAST_TARGET_MS, MOST_STOP_GAIN = 0.001, 1e-6, 0.99
"""Smallest time budget, smallest target time and largest `stop_gain` of a job. Earlier releases
accepted any positive time, and any `stop_gain` below 1."""


@_with_form("job budget")
@dataclass(frozen=True, slots=True)
class JobBudget(JsonValue):
    """The limits of a job and the settings of its search.

    The job ends at the first limit that it reaches.
    """

    trials: Annotated[
        int,
        Between(0, 10_000_000),
        UserOption("Maximum number of candidates to measure", "--trials"),
    ] = 1000
    seconds: Annotated[
        Annotated[float, Between(LEAST_BUDGET_SECONDS, 30 * DAY)] | None,
        UserOption("Maximum time to tune", "--seconds"),
    ] = None
    seed: Annotated[int, Between(0, (1 << 63) - 1), UserOption("Seed of the search", "--seed")] = 0
    stop_gain: Annotated[
        float,
        Between(0, MOST_STOP_GAIN),
        UserOption(
            "End when less than this share of the model's time is expected of another minute; "
            "0: never",
            "--stop-gain",
            SHARE_TEXT,
        ),
    ] = STOP_GAIN
    target_ms: Annotated[
        Annotated[float, Between(LEAST_TARGET_MS, math.inf)] | None,
        UserOption("End when the kernels add up to no more", "--target-ms"),
    ] = None
    strategy: Annotated[
        Annotated[str, Length(most=100)] | None, UserOption("Search strategy", "--strategy")
    ] = None
    unconstrained: Annotated[
        bool,
        UserOption(
            "Search all valid schedules, also those that exceed the target's registers",
            "--unconstrained",
        ),
    ] = False

    def after(self, spent: float) -> JobBudget:
        """Return the budget for tuning, if the phases before it took `spent` seconds.

        `seconds` limits the whole job: planning, tuning and verification. Verification is expected
        to take as long as planning. If both together exceed FIXED_SECONDS, the excess is subtracted
        from `seconds`, but tuning keeps at least half of `seconds`.
        """
        if self.seconds is None or 2 * spent <= FIXED_SECONDS:
            return self
        left = self.seconds - (2 * spent - FIXED_SECONDS)
        return replace(self, seconds=max(left, self.seconds / 2))

    def is_late(self, spent: float) -> bool:
        """Return whether a command should skip optional steps, because much of its time is spent.

        `spent` is the time in seconds since the start of the command. It is compared with a
        fraction of the budget.
        """
        return self.seconds is not None and spent > LATE_SHARE * self.seconds + LATE_SECONDS

    @property
    def more_seconds(self) -> float:
        """The time limit, in seconds, for verifying the program at sizes other than its size hints.

        It is a tenth of `seconds`, but within the two bounds in MORE_SECONDS. Without `seconds`, it
        is the upper bound.
        """
        least, most = MORE_SECONDS
        return most if self.seconds is None else min(max(self.seconds / 10, least), most)


@_with_form("job options")
@dataclass(frozen=True, slots=True)
class JobOptions(JobBudget):
    """The options of a job other than its model and its mode (target, threads and numerics)."""

    dims: Annotated[
        Mapping[str, Size | SizeText | Annotated[tuple[Size | SizeText, ...], Length(1, 64)]],
        Length(most=64),
        UserOption(
            "Sizes of the model's named dimensions: one, several that the artifact serves, or a "
            "range such as 1..512 or 32..640:32 with the size hints at which it is tuned and the "
            "share of runs that have each, 1..512@32:0.5,128:0.3; hints alone, @128, keep the "
            "default range, which is 1..4096",
            "--dim",
            SIZES_TEXT,
            {"batch": 1, "sequence": "1..512@32:0.5,128:0.3"},
        ),
    ] = field(default_factory=dict)
    samples: Annotated[
        tuple[Digest, ...],
        Length(most=64),
        UserOption(
            "Uploaded files of samples: their sizes are size hints, and programs are verified, "
            "raced and timed on them"
        ),
    ] = ()
    values: Annotated[
        Mapping[str, Annotated[int | float, Between(-(1 << 63), (1 << 64) - 1)]],
        Length(most=64),
        UserOption(
            "Numbers that fill inputs, by name, such as a sampling rate",
            "--value",
            VALUES_TEXT,
            {"sr": 16000},
        ),
    ] = field(default_factory=dict)
    pad: Annotated[
        bool, UserOption("Pad inputs with zeros up to the artifact's next sizes", "--pad")
    ] = False
    weight_limit: Annotated[
        Annotated[int, Between(1, 1 << 62)] | None,
        UserOption(
            "Maximum bytes of packed weights; algorithms that expand them give way",
            "--weight-limit",
        ),
    ] = None

    @property
    def sizes(self) -> dict[str, tuple[int | str, ...]]:
        """The sizes of each dynamic dimension by name. The artifact serves all combinations.

        An integer is a fixed size with a separate program. A text is a range for which there is one
        program (`1..512`), a range with the size hints at which kernels are measured
        (`1..512@32:0.5,128:0.3`), or size hints alone (`@128`).
        """
        return {
            n: (each,) if isinstance(each, int | str) else each for n, each in self.dims.items()
        }


@_with_form("queue options")
@dataclass(frozen=True, slots=True)
class QueueOptions(JsonValue):
    """The options that decide when a queued job runs.

    They are its priority and its longest wait for a worker.
    """

    priority: Annotated[
        int,
        Between(-100, 100),
        UserOption(
            "Among your jobs, and those of owners with as many running: highest first", "--priority"
        ),
    ] = 0
    wait_seconds: Annotated[
        Annotated[float, Between(0, 365 * DAY)] | None,
        UserOption(
            "Maximum time to wait for a worker; then the job ends with the known records", "--wait"
        ),
    ] = None
